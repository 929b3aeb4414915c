"""Findings of each step, from its observations."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.report.chart import Axis, BarChart, Line, LineChart
from loadgen.report.table import columns, table_of
from serving.client.conversation import ChatReply
from serving.tools.chaos.asks import CHAT, Ask, StreamedAnswer
from serving.tools.chaos.targets import Target
from serving.tools.demo.cache_step import CachedTurn, cache_report, cached_turn, turn_line
from serving.tools.demo.chat_step import chat_report
from serving.tools.demo.demo_page import report_page
from serving.tools.demo.kill_step import Killed, kill_report, pause_s
from serving.tools.demo.load_step import load_report
from serving.tools.demo.scale_step import Scaled, scale_report
from serving.tools.demo.simulate_step import simulate_report
from serving.tools.demo.stage import DemoRun, StepError, StepOutcome
from tests.tools.demo.staging import REPORT, small_step

TARGET = Target("decode", "decode#1", 7, 1)
DECISION = {"pool": "decode", "before": 1, "target": 2, "kind": "held", "by": "cli", "reason": "asked for by hand"}


def test_a_chat_is_told_with_the_time_of_its_first_token() -> None:
    reply = ChatReply(10.0, first=10.05, last=11.0, text="Once", usage={"completion_tokens": 80})
    report = chat_report(reply, 0.0)
    assert report.figure == ("command to first token", "10.1 s")
    assert "50.0 ms after the question" in report.summary
    assert report.quotes[1] == "Once"

    with pytest.raises(StepError, match="empty"):
        chat_report(ChatReply(10.0), 0.0)


def test_cached_and_pulled_tokens_are_told_for_each_turn() -> None:
    usage = {"prompt_tokens": 108, "prompt_tokens_details": {"cached_tokens": 96, "pulled_tokens": 80}}
    turns = [CachedTurn(17, 0, 0), cached_turn(ChatReply(0.0, usage=usage))]
    assert turn_line(turns[1]) == " 108 prompt tokens,   96 cached,   80 pulled"
    report = cache_report(turns)
    assert report.figure[1] == "88.9 %"
    assert report.problem == ""
    assert [list(row.cells) for row in report.tables[0].rows] == [[1, 17, 17, 0, 0], [2, 108, 12, 96, 80]]
    chart = report.charts[0]
    assert isinstance(chart, BarChart)
    assert [(bar.lane, bar.start, bar.end, bar.key) for bar in chart.bars] == [
        (0, 0, 17, 2), (1, 0, 16, 0), (1, 16, 96, 1), (1, 96, 108, 2),
    ]  # fmt: skip

    assert "nothing was cached" in cache_report([CachedTurn(17, 0, 0), CachedTurn(50, 0, 0)]).problem


def answer(*arrivals: float, tokens: tuple[int, ...] = (5, 6, 7)) -> StreamedAnswer:
    """A whole response with one token per chunk."""
    found = StreamedAnswer(Ask(0, "story", CHAT, {"stream": True}), 1.0, outcome="finished")
    found.choices[0].tokens = list(tokens)
    found.choices[0].arrivals = [(at, 1) for at in arrivals]
    found.choices[0].finish = "stop"
    found.ended_s = arrivals[-1]
    found.usage = {"resumptions": 1}
    return found


def test_the_pause_after_a_kill_is_measured_and_the_tokens_are_compared() -> None:
    killed = Killed(answer(1.1, 1.2, 3.5), TARGET, 1.3)
    events = [
        {"kind": "replaced", "replica": "decode#2", "text": "b"},
        {"kind": "died", "replica": "decode#1", "text": "a"},
    ]
    report = kill_report(answer(1.1, 1.2, 1.3), killed, events)
    assert report.figure == ("pause of the stream", "2.30 s")
    assert report.problem == ""
    assert "all 3 tokens are those of the undisturbed answer" in report.summary
    assert [row.cells[0] for row in report.tables[1].rows] == ["died", "replaced"]
    chart = report.charts[0]
    assert isinstance(chart, LineChart)
    assert chart.xs == [0.0, 0.1, 0.2, 0.3, 2.5]
    assert chart.lines[1].values == [0.0, 1.0, 2.0, None, 3.0]
    assert chart.marks[0].xs == [0.3]


def test_other_tokens_or_no_kill_are_failures() -> None:
    report = kill_report(answer(1.1, 1.2, 1.3), Killed(answer(1.1, 1.2, 3.5, tokens=(5, 6, 8)), TARGET, 1.3))
    assert "token 2 is 8, not 7" in report.problem
    assert report.more[0] == "not token-exact"
    with pytest.raises(StepError, match="before the kill"):
        kill_report(answer(1.1), Killed(answer(1.1)))
    assert pause_s(answer(1.1, 2.0, 2.1), 2.0) == pytest.approx(0.9)
    assert pause_s(answer(1.1, 2.0, 2.1), 2.05) == pytest.approx(0.1)
    assert pause_s(answer(1.1), 5.0) == 0.0


def test_a_larger_pool_is_told_with_its_time_and_its_decision() -> None:
    report = scale_report(Scaled(1, 2, 3.2, 0.05, (3, 5), DECISION))
    assert report.figure == ("until both serve", "3.20 s")
    assert "longer than 50.0 ms" in report.summary
    assert list(report.tables[0].rows[0].cells) == ["decode", "1 to 2", "held", "cli", "asked for by hand"]
    assert report.problem == ""
    assert "decisions" in scale_report(Scaled(1, 2, 3.2, 0.05, (3, 5), {})).problem


GENERATOR: dict[str, object] = {"is_bottleneck": False, "machine_was_busy": False, "clock_warnings": []}


def load_result(**changes: object) -> dict[str, object]:
    """The used part of a result of `loadgen run`."""
    metric = {"count": 72, "mean": 0.1, "percentiles": {"50": 0.09, "99": 0.4}}
    return {
        "requests": 73,
        "outcomes": {"ok": 72, "unfinished": 1},
        "throughput": {"output_tokens_per_s": 524.7, "requests_per_s": 8.2},
        "generator": GENERATOR,
        "metrics": {"ttft": metric, "tpot": metric, "e2e": metric, "itl": metric},
        **changes,
    }


def test_load_tests_are_told_with_doubts() -> None:
    report = load_report(load_result())
    assert report.figure[1] == "525 tokens/s"
    assert report.problem == ""
    assert report.more == ("73 requests, 0 failed", "loadgen kept up")
    assert [column.name for column in report.tables[0].columns] == ["latency", "count", "mean", "p50", "p99"]
    assert len(report.tables[0].rows) == 3

    report = load_report(load_result(outcomes={"ok": 70, "http_error": 3}))
    assert report.problem == "3 of 73 requests failed"
    for doubt, told in (
        ({"is_bottleneck": True}, "loadgen itself was the limit"),
        ({"machine_was_busy": True}, "the machine was too busy for exact times"),
        ({"clock_warnings": ["it slept"]}, "the machine was too busy for exact times"),
    ):
        assert told in load_report(load_result(generator={**GENERATOR, **doubt})).summary
    assert load_report(load_result(metrics={})).tables[0].rows == []


def test_a_simulation_that_leaves_requests_is_a_failure() -> None:
    latency = {"count": 9, "mean": 0.1, "p50": 0.1, "p90": 0.2, "p99": 0.3}
    summary = {
        "requests": 10, "outcomes": {"finished": 9}, "duration_s": 75.0, "ttft_s": latency, "tpot_s": latency,
        "e2e_s": latency, "throughput": {"output_tokens_per_s": 94251.0, "output_tokens_per_npu_s": 368.0},
        "pools": [{"name": "decode", "instances": 1, "peak_npus": 160, "busy_share": 0.9}],
    }  # fmt: skip
    timeline = {"at_s": [0.0, 0.1], "decode_batch": [0, 5]}
    report = simulate_report({"name": "r1", "summary": summary, "config": {"NPUs": "384"}, "timeline": timeline})
    assert report.problem == "1 of 10 requests did not finish"
    assert report.figure == ("r1 on 384 NPUs", "94,251 tokens/s")
    assert "1:15 of a supernode with 384 NPUs" in report.summary


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


def test_a_good_demo_shows_what_each_step_found_and_loads_nothing() -> None:
    shown = page(StepOutcome(small_step("load"), "done", 3.0, report=FULL))
    assert '<p class="lead good">1 thing shown, nothing failed</p>' in shown
    for text in (
        '<h2 id="load">Title of load</h2>', "It worked. (3.00 s)", "Text of load.", "Because",
        "of &lt;b&gt;this&lt;/b&gt;.",
        '<a href="load/report.html">its own report</a>', 'id="curve"', "command load",
        "storyteller", "1.2 <small>s</small>",
    ):  # fmt: skip
        assert text in shown

    shown = page(StepOutcome(small_step("load"), "done", 3.0, report=FULL))
    assert re.findall(r'(?:src|href)="(?!#|data:|load/)[^"]*"', shown) == []


def test_failed_steps_and_what_was_left_are_told() -> None:
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

    run = DemoRun([StepOutcome(small_step("one"), "done", 1.0, report=REPORT)], left=("process 7",))
    assert run.failed
    assert '<p class="bad">process 7</p>' in report_page(run)
