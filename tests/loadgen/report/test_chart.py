"""Charts as values: what is thinned looks the same, and what is sent to the page is small."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.chart import Axis, Bar, BarChart, Key, compact_all, thin

values = st.one_of(st.none(), st.floats(-1e6, 1e6))


@given(st.lists(st.tuples(values, values), max_size=300), st.integers(1, 20))
def test_thinned_curves_keep_ends_extremes_and_order(points: list[tuple[float | None, ...]], most: int) -> None:
    xs = [float(at) for at in range(len(points))]
    columns = [[point[curve] for point in points] for curve in (0, 1)]
    kept, thinned = thin(xs, columns, most)
    assert len(kept) <= max(2 * most * 2 + 2, 2 * most + 2)
    assert kept == sorted(set(kept))
    assert kept[:1] + kept[-1:] == xs[:1] + xs[-1:]
    for whole, part in zip(columns, thinned, strict=True):
        assert [part[place] for place, _ in enumerate(kept)] == [whole[int(x)] for x in kept]
        told, shown = ([value for value in column if value is not None] for column in (whole, part))
        assert (max(shown, default=None), min(shown, default=None)) == (
            max(told, default=None),
            min(told, default=None),
        )


def test_what_is_not_finite_is_a_gap() -> None:
    assert compact_all([1.23456789, math.nan, math.inf, None]) == [1.23457, None, None, None]


def test_bars_are_short_in_the_page() -> None:
    chart = BarChart(
        id="b", title="t", x=Axis(unit="s"), lanes=["a"], lane_px=20, keys=[Key(name="k", color="blue")],
        bars=[Bar(0, 1.0, 2.0, 0), Bar(0, 2.0, 3.0, 0, "says", part=1)],
    )  # fmt: skip
    sent = msgspec.json.decode(msgspec.json.encode(chart))
    assert sent["kind"] == "bars"
    assert sent["bars"][0][:4] == [0, 1.0, 2.0, 0]
    assert sent["bars"][1] == [0, 2.0, 3.0, 0, "says", "", "", 1]
