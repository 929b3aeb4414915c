"""The report of a demo: each step's outcome, whatever it was, and nothing from outside."""

import re
from dataclasses import replace
from pathlib import Path

from loadgen.report.chart import Axis, Line, LineChart
from loadgen.report.table import columns, table_of
from serving.tools.demo.page import report_page
from serving.tools.demo.step import DemoRun, StepOutcome
from tests.tools.demo.staging import REPORT, small_step

CHART = LineChart(
    id="curve", title="A curve", x=Axis(unit="s"), y=Axis(unit="count"), xs=[0.0, 1.0],
    lines=[Line(name="one", values=[0.0, 2.0], color="blue")],
)  # fmt: skip
FULL = replace(
    REPORT,
    quotes=("> Why?", "Because\nof <b>this</b>."),
    tables=(table_of(columns("name", "value"), [["one", 1]]),),
    charts=(CHART,),
    files=(("its own report", Path("load/report.html")),),
)


def page(*outcomes: StepOutcome, left: tuple[str, ...] = (), ended_early: bool = False) -> str:
    return report_page(DemoRun(list(outcomes), "storyteller", 61.0, left, ended_early))


def test_a_good_demo_shows_what_each_step_found() -> None:
    shown = page(StepOutcome(small_step("load"), "done", 3.0, report=FULL))
    assert '<p class="lead good">1 thing shown, nothing failed</p>' in shown
    for text in (
        '<h2 id="load">Title of load</h2>', "It worked. (3.00 s)", "Text of load.", "Because",
        "of &lt;b&gt;this&lt;/b&gt;.",
        '<a href="load/report.html">its own report</a>', 'id="curve"', "command load",
        "storyteller", "1.2 <small>s</small>",
    ):  # fmt: skip
        assert text in shown


def test_skipped_and_failed_steps_are_told_as_such() -> None:
    outcomes = [
        StepOutcome(small_step("one"), "skipped", 0.0),
        StepOutcome(small_step("two"), "failed", 1.0, "it is <gone>"),
        StepOutcome(small_step("three"), "done", 1.0, report=REPORT),
    ]
    shown = page(*outcomes, ended_early=True)
    assert '<p class="lead bad">failed: Title of two</p>' in shown
    assert '<p class="bad">failed: it is &lt;gone&gt;</p>' in shown
    assert '<p class="soft">skipped</p>' in shown
    assert "ended early" in shown
    assert "2 things shown, nothing failed; skipped: Title of one" in page(outcomes[0], outcomes[2], outcomes[2])


def test_what_was_left_behind_is_told() -> None:
    run = DemoRun([StepOutcome(small_step("one"), "done", 1.0, report=REPORT)], left=("process 7",))
    assert run.failed
    assert '<p class="bad">process 7</p>' in report_page(run)


def test_the_page_loads_nothing() -> None:
    shown = page(StepOutcome(small_step("load"), "done", 3.0, report=FULL))
    assert re.findall(r'(?:src|href)="(?!#|data:|load/)[^"]*"', shown) == []
