"""The picture of all rows: every row is a point at its error; the committed one is up to date."""

import html
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hardware.cost.published import RowKind
from serving.tools.paper.experiment import Experiment, Findings, How, Row, Setting, quoted
from serving.tools.paper.reproduction import Reproduction, reproduce
from serving.tools.paper.summary_chart import WIDTH, summary_file, summary_svg
from tests.tools.paper.conftest import LONG

COMMITTED = Path(__file__).parents[3] / "serving" / "virtual" / "reproduced.svg"
SVG = "{http://www.w3.org/2000/svg}"


def points(drawing: str | bytes) -> list[tuple[float, float, str]]:
    """Positions of the points, and their labels."""
    return [
        (float(circle.attrib["cx"]), float(circle.attrib["cy"]), circle[0].text or "")
        for circle in ElementTree.fromstring(drawing).iter(f"{SVG}circle")
        if len(circle)
    ]


def drawn(*rows: Row) -> str:
    """The picture of one experiment with these rows."""
    experiment = Experiment("test", "a <title> & more " * 5, "by hand", lambda _: Findings(rows))
    return summary_svg(reproduce([experiment], Setting(quick=True)))


def row(key: str, ours: float | None, kind: RowKind = RowKind.PREDICTED, *, published: float = 100.0) -> Row:
    """One that was published as 100."""
    if ours is None:
        return quoted(key, f"<{key}>", published, "ms", "s")
    return Row(key, f"<{key}>", published, ours, "ms", How.RUN, "s", kind)


def test_the_picture_has_a_point_for_each_row_and_its_own_colours(everything: Reproduction) -> None:
    found = points(summary_svg(everything))
    assert len(found) == sum(count.rows for count in everything.score.counts.values())
    assert len({y for _, y, _ in found}) == len(everything.parts)
    assert all(0 < x < WIDTH for x, _, _ in found)
    assert everything.score.text in summary_svg(everything)
    assert html.escape(everything.score.headline) in summary_svg(everything)

    text = summary_file(everything).decode()
    assert "prefers-color-scheme: dark" in text
    named = set(re.findall(r"var\((--[a-z]+)\)", text))
    assert all(f"{name}: #" in text for name in named)
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


def test_points_stand_in_the_order_of_their_errors() -> None:
    drawing = drawn(
        row("a", 20.0), row("b", 98.0), row("c", 100.0), row("d", 104.0, RowKind.FITTED), row("e", 230.0),
        row("q", None),
    )  # fmt: skip
    places = {said[1]: x for x, _, said in points(drawing)}
    assert sorted(places, key=places.__getitem__) == list("abcde")
    texts = [one for one in ElementTree.fromstring(drawing).iter(f"{SVG}text") if (one.text or "").endswith("%")]
    ticks = [(float(one.attrib["x"]), one.text) for one in texts if one.attrib.get("text-anchor") == "middle"]
    assert {"−50%", "−5%", "+5%", "+100%"} <= {name for _, name in ticks}
    assert min(right - left for (left, _), (right, _) in itertools.pairwise(ticks)) >= 34, "labels do not touch"
    band = next(box for box in ElementTree.fromstring(drawing).iter(f"{SVG}rect"))
    left = float(band.attrib["x"])
    right = left + float(band.attrib["width"])
    assert places["a"] < left < places["b"] < places["d"] < right < places["e"]


def test_what_is_unexplained_is_red_and_what_was_not_predicted_is_hollow() -> None:
    drawing = drawn(
        row("a", 150.0), row("b", 100.0, RowKind.FITTED), row("c", 101.0),
        row("d", 1.0, RowKind.DERIVED, published=1.0),
        row("e", 100.0, RowKind.READ_BACK),
    )  # fmt: skip

    fills = {
        (circle[0].text or "")[1]: circle.attrib["fill"]
        for circle in ElementTree.fromstring(drawing).iter(f"{SVG}circle")
        if len(circle)
    }
    assert fills == {
        "a": "var(--red)", "b": "var(--card)", "c": "var(--blue)", "d": "var(--card)", "e": "var(--card)",
    }  # fmt: skip
    assert "unexplained" in drawing


def test_an_error_without_end_has_no_place() -> None:
    assert points(drawn(row("a", 5.0, published=0.0), row("b", 101.0)))[0][2].startswith("<b>")
    assert points(drawn(row("q", None))) == []


def test_the_committed_picture_is_that_of_a_quick_run(everything: Reproduction) -> None:
    """Names and figures are the same; positions to a pixel, since another processor may change an error's last
    digit.
    """
    written, now = points(COMMITTED.read_bytes()), points(summary_file(everything))
    if LONG not in {part.experiment.name for part in everything.parts}:
        written = written[: len(now)]  # it is the last part
    hint = "copy summary.svg of `cloudmatrix reproduce --quick --out DIR` there"
    assert [said.partition(":")[0] for _, _, said in written] == [said.partition(":")[0] for _, _, said in now], hint
    assert [place[:2] for place in written] == [pytest.approx(place[:2], abs=2.0) for place in now], hint
