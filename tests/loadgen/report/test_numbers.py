"""Numbers as people read them."""

import io
import math
from collections.abc import Callable
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadgen.report import numbers
from loadgen.report.chart import Axis, Bar, BarChart, Key, compact_all, thin
from loadgen.report.table import (
    Cell,
    Table,
    TableRow,
    columns,
    filtered_table,
    html_table,
    markdown_table,
    table_of,
    terminal_table,
)
from loadgen.result import Generator
from loadgen.run_report.names import generator_figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"), (84e-6, "84.0 µs"), (0.0123, "12.3 ms"), (0.312, "312 ms"), (0.9999, "1.00 s"),
        (1.239, "1.24 s"), (0.00012345, "123 µs"), (0.09999, "100 ms"),
        (75.0, "75.0 s"), (125.4, "2 min 05 s"), (3600.0, "60 min 00 s"), (7200.0, "2 h 00 min"),
            (45_000.0, "12 h 30 min"), (None, "–"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, text: str) -> None:
    assert numbers.duration(seconds) == text


@given(st.floats(1e-6, 100.0))
def test_a_duration_keeps_three_digits(seconds: float) -> None:
    value, unit = numbers.duration(seconds).split(" ")
    read = float(value.replace(",", "")) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]
    assert read == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1.0, "100 %"), (0.974, "97.4 %"), (0.9996, "99.96 %"), (0.99996, "99.996 %"), (0.0004, "0.04 %"),
     (1e-9, "< 0.001 %"), (1 - 1e-9, "> 99.999 %"), (None, "–")],
)  # fmt: skip
def test_a_share_is_never_rounded_to_none_or_all(share: float | None, text: str) -> None:
    assert numbers.share(share) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (0.0456, "0.0456"), (0, "0"), (None, "–"), (9.5, "9.50")]
)
def test_significant(value: float | None, text: str) -> None:
    assert numbers.significant(value) == text


def test_quantities_limits_and_differences() -> None:
    assert [numbers.limit(value) for value in (0.05, 1.5, 0.5, 0.0002)] == ["50 ms", "1.5 s", "500 ms", "200 µs"]
    assert numbers.quantity(0.25, "s") == "250 ms"
    assert numbers.quantity(128, "tokens") == "128 tokens"
    assert numbers.quantity(None, "tokens") == "–"
    assert [numbers.percentile_name(name) for name in ("99", "99.90", 50)] == ["p99", "p99.9", "p50"]
    assert [numbers.change(value) for value in (0.012, -0.034, 0.0001, None)] == ["+1.2 %", "−3.4 %", "0.0 %", "–"]


def test_what_the_generators_verdict_rests_on() -> None:
    generator = Generator(
        workers=2, cpu_share=0.034, loop_lag_p99_s=0.0004, starved_s=0.25, offered_per_s=8.0, achieved_per_s=7.5
    )
    assert generator_figures(generator) == (
        "2 processes, busy for at most 3.4 % of a core; timers late by 400 µs (p99); 7.50 of 8.00 offered requests per "
        "second sent; slots empty for 250 ms for want of prompts."
    )
    closed_loop = Generator(workers=1, cpu_share=0.5, loop_lag_p99_s=0.001)
    assert generator_figures(closed_loop).startswith("One process, busy for at most 50.0 % of a core; timers late")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (12.5, "12.5 s"), (60.0, "1:00"), (245.0, "4:05"), (3723.0, "1:02:03")]
)
def test_moments(seconds: float, text: str) -> None:
    assert numbers.clock(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.50 KiB"), (3 << 40, "3.00 TiB"), (10**20, "88,818 PiB"), (None, "–")],
)
def test_bytes(nbytes: int | None, text: str) -> None:
    assert numbers.size(nbytes) == text


@given(st.floats(1e-12, 1 - 1e-12), st.integers(0, 3))
def test_a_share_between_is_never_shown_as_all_or_nothing(value: float, digits: int) -> None:
    assert float(numbers.share(value, digits).strip("<> %")) not in (0.0, 100.0)


@pytest.mark.parametrize("text", [numbers.significant, numbers.duration, numbers.clock, numbers.share, numbers.change])
def test_what_is_not_known_is_a_dash(text: Callable[[float], str]) -> None:
    assert text(math.nan) == numbers.MISSING


TABLE = Table(
    columns("pool", "tokens per s", "state", "why", text=("state",), long=("why",)),
    [
        TableRow(["prefill", "1,234", Cell("late", "bad"), "<b>[red]x[/]</b> | y"], kind="one"),
        TableRow(["decode", "5.00", "fine", "z"], "best", "two"),
    ],
    "A note & more.",
)


class Reader(HTMLParser):
    """Texts of the cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Start a cell."""
        self.cells += [""] if tag in ("th", "td") else []

    def handle_data(self, data: str) -> None:
        """Add text to it."""
        if self.cells and data.strip():
            self.cells[-1] += data


def printed(table: Table, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(terminal_table(table, width))
    return stream.getvalue()


def test_tables_say_the_same_everywhere() -> None:
    reader = Reader()
    reader.feed(html_table(Table(TABLE.columns, TABLE.rows)))
    markdown = [cell for line in markdown_table(TABLE) for cell in line.strip("| ").split(" | ")]
    del markdown[4:8]
    assert [cell.replace("|", "/") for cell in reader.cells] == markdown
    for cell in reader.cells:
        assert cell in printed(TABLE, 120)

    table = table_of(columns("pool", "tokens per s"), [["prefill", "1,234,567"]])
    wide, narrow = printed(table, 120), printed(table, 20)
    assert "tokens per s" in wide
    assert "tokens per s" not in narrow
    assert "1,234,567" in narrow


def test_tables_on_a_page() -> None:
    text = html_table(TABLE, anchor="rows", tall=True)
    assert '<tr data-kind="one"><th scope="row">prefill</th><td>1,234</td><td class="text bad">late</td>' in text
    assert '<tr class="best" data-kind="two">' in text
    assert '<tbody id="rows">' in text
    assert "&lt;b&gt;[red]x" in text
    assert '<p class="soft">A note &amp; more.</p>' in text
    assert "<thead>" not in html_table(table_of(columns("", ""), [["a", "b"]]))

    text = filtered_table(TABLE, "rows", "decision")
    assert "<option>one</option><option>two</option>" in text
    assert 'data-rows="rows" hidden' in text
    assert 'aria-label="Kind of decision"' in text


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


def test_what_the_page_gets_is_small() -> None:
    assert compact_all([1.23456789, math.nan, math.inf, None]) == [1.23457, None, None, None]

    chart = BarChart(
        id="b", title="t", x=Axis(unit="s"), lanes=["a"], lane_px=20, keys=[Key(name="k", color="blue")],
        bars=[Bar(0, 1.0, 2.0, 0), Bar(0, 2.0, 3.0, 0, "says", part=1)],
    )  # fmt: skip
    sent = msgspec.json.decode(msgspec.json.encode(chart))
    assert sent["kind"] == "bars"
    assert sent["bars"][0][:4] == [0, 1.0, 2.0, 0]
    assert sent["bars"][1] == [0, 2.0, 3.0, 0, "says", "", "", 1]
