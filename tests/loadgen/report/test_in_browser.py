"""Every kind of chart in a real browser, with all its options: it is drawn, and shows its values."""

import html
import importlib.resources
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadgen.report import numbers
from loadgen.report.chart import (
    Axis,
    Bar,
    BarChart,
    Chart,
    Key,
    Limit,
    Line,
    LineChart,
    Marks,
    ScatterChart,
    ScatterTrace,
)
from loadgen.report.fragments import details, element
from loadgen.report.page import Page, render
from loadgen.report.table import Table, TableRow, columns, filtered_table
from tests.loadgen.report.browser import FLAGS, chromium, inspect

OVER_TIME = LineChart(
    id="over-time", title="Over time", x=Axis(unit="clock", low=0.0, high=7200.0), y=Axis(unit="count"),
    xs=[0.0, 1800.0, 5400.0, 7200.0],
    lines=[
        Line(name="steps", values=[1.0, 3.0, 2.0, 2.0], color="blue", steps=True),
        Line(name="gaps", values=[None, 1e6, None, 2e6], color="violet", dash=True),
    ],
    marks=[Marks(name="fault", color="red", xs=[600.0]), Marks(name="scaling", color="orange", xs=[900.0], dash=True)],
    group="time",
)  # fmt: skip
LOG = LineChart(
    id="log", title="Logarithmic", x=Axis(unit="s", log=True), y=Axis(unit="share"), xs=[0.001, 0.1, 10.0],
    lines=[Line(name="share", values=[0.0, 0.5, 1.0], color="green", fill=True)],
    limits=[Limit(name="SLO", value=0.5, vertical=True), Limit(name="far", value=1e3, vertical=True)],
)  # fmt: skip
FRONT = ScatterChart(
    id="front", title="Front", x=Axis(unit="number", low=10.0, high=90.0), y=Axis(unit="per_s"),
    traces=[
        ScatterTrace(name="front", xs=[20.0, 60.0], ys=[1.0, 5.0], color="grey", joined=True, steps=True, bare=True),
        ScatterTrace(
            name="best", xs=[60.0], ys=[5.0], color="green", large=True, marks=["4 x 16"], labels=["the best"]
        ),
    ],
)  # fmt: skip
SIDES = BarChart(
    id="sides", title="Side by side", x=Axis(unit="number", low=0.0, high=1e5), lanes=["a", "a long name " * 9],
    lane_px=40, parts=2, keys=[Key(name="published", color="orange"), Key(name="ours", color="blue")],
    bars=[
        Bar(0, 0.0, 8e4, 0, "published 80"), Bar(0, 0.0, 9e4, 1, "ours 90", after="+12.5 %", part=1),
        Bar(1, 0.0, 1e5, 0, "published 100", after="no room"), Bar(1, 0.0, 5e4, 1, "ours 50", part=1),
    ],
)  # fmt: skip
LAYER = BarChart(
    id="layer", title="Layer", x=Axis(unit="s", low=0.0, high=1e-3), lanes=["stream"], lane_px=120, group="",
    keys=[Key(name="A", color="violet", alpha=0.7)],
    bars=[Bar(0, 0.0, 9e-4, 0, "wide", name="a wide one"), Bar(0, 9e-4, 1e-3, 0, "narrow", name="narrow")],
)  # fmt: skip
CHARTS: list[Chart] = [OVER_TIME, LOG, FRONT, SIDES, LAYER]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("width", "dark"), [(360, True), (1100, False)])
def test_every_kind_of_chart(tmp_path: Path, width: int, dark: bool) -> None:
    page = Page("All kinds", footnote="A <note>.")
    page.body.append(element("h1", page.title))
    page.add("charts", "Charts", page.draw(CHARTS))
    rows = [TableRow(["1", "scale TTFT"], kind="scale"), TableRow(["2", "route"], kind="route")]
    page.add("more", "More", details("Folded", "text"))
    page.add("rows", "Rows", filtered_table(Table(columns("at", "why", long=("why",)), rows), "the-rows", "decision"))
    (tmp_path / "report.html").write_text(render(page, "test 1"), encoding="utf-8")
    seen = inspect(tmp_path / "report.html", width=width, dark=dark)
    assert (seen["errors"], seen["ready"]) == ("", "yes")
    assert seen["overflow"] <= 0
    assert seen["filters"] == ["2 of 2 rows", "1 of 2 rows"]
    printed, after = seen["paper"]
    assert printed == {"theme": "light", "width": 1000, "closed": 0}
    assert (after["theme"], after["closed"]) == ("dark" if dark else "light", 1)
    assert after["width"] != 1000
    assert list(seen["figures"]) == [chart.id for chart in CHARTS]
    for name, figure in seen["figures"].items():
        assert figure["drawn"] == "yes", name
        assert figure["left"] == "", name
        assert figure["zoomed"] == 1, name
        assert figure["cut"] == 0, f"{name}: the last label of its axis is cut"
    said = {name: figure["pointed"] for name, figure in seen["figures"].items()}
    assert said["over-time"] == "30:00"
    assert said["front"] == "the best: 5.00/s at 60.00"
    assert said["sides"] == "ours 90"
    assert said["layer"] == "narrow"


def test_a_page_without_charts_is_whole() -> None:
    text = render(Page("Nothing <here>", footnote="A <note>."), "test 1")
    assert "<title>Nothing &lt;here&gt;</title>" in text
    assert "Written by test 1. A &lt;note&gt;." in text
    assert 'id="chart-data">[]<' in text


def test_texts_cover_no_line_and_distributions_begin_at_their_data(tmp_path: Path) -> None:
    """Texts by the directions of lines from the point, each given as points on it."""
    assets = importlib.resources.files("loadgen.report") / "assets"
    script = "\n".join((assets / name).read_text(encoding="utf-8") for name in ("format.js", "plot.js", "scatter.js"))
    *found, begins, limited, over_time, ticks = _computed(
        tmp_path, script, """[[-1, -1], [1, 1], [-1, 0], [0, -1]].map(([across, down]) => {
          const line = Array.from({ length: 40 }, (_, at) => [100 + 3 * at * across, 100 + 3 * at * down]);
          const box = { left: 0, top: 0, width: 200, height: 200 };
          const [left, top, width, height] = freePlace([100, 100], [60, 12], 5, box, line, []);
          return line.filter(([x, y]) => x > left && x < left + width && y > top && y < top + height).length;
        }).concat(freePlace([5, 5], [60, 12], 5, { left: 0, top: 0, width: 20, height: 20 }, [], [])).concat([
          fromZero({ x: { unit: "percentile" } })(null, 0.3, 0.31),
          fromZero({ x: { unit: "percentile" }, limits: [{ value: 0.2 }, { value: 9 }] })(null, 0.3, 0.4),
          fromZero({ x: { unit: "clock" } })(null, 0.3, 0.31),
          roomyPercentiles(0, 8, 8 / 300).map((at) => Math.round(at * 37.5)),
        ])""",
    )  # fmt: skip
    assert found == [0, 0, 0, 0, None]
    assert begins == pytest.approx([0.2993, 0.3107]), "not at 0, which is far away"
    assert limited == pytest.approx([0.186, 0.414]), "an SLO below the data is shown; one far above is not"
    assert over_time[0] == 0
    assert ticks == [11, 38, 75, 113, 187], "50, 90, 99, 99.9, 99.999: 0 and 99.99 would touch a neighbour"


def test_a_page_writes_numbers_as_python_does(tmp_path: Path) -> None:
    """The page's script formats the values under the cursor by the rules of `numbers`."""
    values = [0.0, 1.0, 0.974, 0.9996, 1e-9, 84e-6, 0.0123, 0.9999, 9.996, 59.9, 75.0, 125.4, 3723.0, 8000.0, 45_000.0]
    script = (importlib.resources.files("loadgen.report") / "assets" / "format.js").read_text(encoding="utf-8")
    ways = "[significant, formatDuration, formatClock, formatShare]"
    found = _computed(tmp_path, script, f"{json.dumps(values)}.map((one) => {ways}.map((way) => way(one)))")
    for value, (figure, length, moment, share) in zip(values, found, strict=True):
        assert figure == numbers.significant(value)
        assert length == numbers.duration(value)
        assert moment == numbers.clock(value)
        if value <= 1:
            assert share == numbers.share(value)


def _computed(folder: Path, script: str, expression: str) -> Any:
    """Value of an expression after a script, in the browser."""
    ask = f"{script}\ndocument.body.textContent = JSON.stringify({expression});"
    page = f"<!DOCTYPE html><meta charset=utf-8><body><script>{ask}</script></body>"
    (folder / "page.html").write_text(page, encoding="utf-8")
    run = subprocess.run(
        [chromium(), *FLAGS, f"--user-data-dir={folder / 'profile'}", (folder / "page.html").as_uri()],
        capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip
    body = re.search(r"<body>(.*?)</body>", run.stdout, re.DOTALL)
    assert body, run.stderr[-500:]
    return json.loads(html.unescape(body[1]))
