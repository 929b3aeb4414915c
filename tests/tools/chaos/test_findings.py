"""Findings of a run, and their wording."""

import io
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hardware.faults import FaultKind
from serving.tools.chaos.asks import COMPLETIONS, Ask, ChoiceSoFar, StreamedAnswer
from serving.tools.chaos.chaos_page import report_page
from serving.tools.chaos.chaos_result import ChaosRun, Down, Event, Leaks, Sample
from serving.tools.chaos.chaos_tables import event_table, print_report, report_json, share
from serving.tools.chaos.findings import FELT_S, PAUSE_S, RESUMED_GAP_S, Pauses, find, pauses_of, quantile

ASK = Ask(0, "greedy", COMPLETIONS, {"stream": True, "max_tokens": 8})
FAULT_S = 100.0


def stream(*arrivals: float, sent_s: float = 90.0, ended_s: float = 130.0, resumptions: int = 0) -> StreamedAnswer:
    """A finished stream with a token at each of these moments."""
    choice = ChoiceSoFar([1] * len(arrivals), finish="length", arrivals=[(at, 1) for at in arrivals])
    usage: dict[str, Any] = {"resumptions": resumptions} if resumptions else {}
    return StreamedAnswer(ASK, sent_s, None, [choice], "finished", ended_s=ended_s, usage=usage)


def kill(number: int = 1, pool: str = "decode", fate: Any = "replaced", at_s: float = FAULT_S) -> Event:
    return Event(number, FaultKind.KILL, at_s - 50, at_s, at_s - 50, pool, f"{pool}#1", 7, fate=fate, replaced_s=4.0)


def run_of(*answers: StreamedAnswer, events: tuple[Event, ...] = (), leaks: Leaks | None = None) -> ChaosRun:
    samples = [Sample(float(at), 2, 10 * at, {"decode": 2}) for at in range(5)]
    return ChaosRun(
        "test", 5, "abc", "<model>", 50.0, 60.0, 60.0, False, 12, list(answers), {}, 1e-6, list(events), samples,
        leaks or Leaks(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "pauses"),
    [
        (stream(99.0, 102.0), [2.0]),
        (stream(99.0, 100.2, 103.0), [3.0]),
        (stream(103.5), [3.5]),
        (stream(99.0, 100.1, 100.2, 100.3, 100.4, 100.6, 105.0), []),
        (stream(99.0, 102.0, sent_s=100.5), []),
        (stream(98.0, 99.0, ended_s=99.5), []),
        (stream(99.0), []),
        (stream(99.9, 100.02, 100.22, resumptions=1), [0.22]),
        (stream(99.9, 100.02, 100.22), []),
    ],
    ids=[
        "stopped at once", "stopped after what was in the pipes", "had no token yet", "went on, stopped later",
        "sent later", "ended before", "never went on", "went on elsewhere at once", "only a long step",
    ],
)  # fmt: skip
def test_a_pause_is_from_the_fault_to_the_next_token(answer: StreamedAnswer, pauses: list[float]) -> None:
    assert pauses_of(kill(), [answer]) == pytest.approx(pauses)


def test_only_instances_stop_streams() -> None:
    run = run_of(stream(99.0, 102.0), events=(kill(pool="kvcache"),))
    assert find(run).resumed.count == 0
    assert find(run_of(stream(99.0, 102.0), events=(kill(),))).resumed.count == 1


def test_a_good_run_is_clean() -> None:
    found = find(run_of(stream(99.0, 102.0, resumptions=1), stream(99.0), events=(kill(), kill(2, "kvcache"))))
    assert found.clean
    assert (found.sent, found.finished, found.compared, found.exact, found.resumptions) == (2, 2, 2, 2, 1)
    assert found.resumed == Pauses(1, 2.0, 2.0, 2.0)
    assert [(kind.pool, kind.replaced, kind.replacement.p50_s) for kind in found.kinds] == [
        ("decode", 1, 4.0),
        ("kvcache", 1, 4.0),
    ]
    assert find(run_of(stream(99.0), events=(kill(),), leaks=Leaks(repaired_flips=3))).clean
    run = run_of(stream(99.0), stream(99.0), events=(kill(),))
    run.differences[1] = "choice 0: token 3 is 5, not 6"
    found = find(run)
    assert (found.exact, found.compared) == (1, 2)
    assert not found.clean


def failed() -> StreamedAnswer:
    answer = stream(99.0)
    answer.outcome, answer.reason = "failed", "HTTP 503: <b>no</b> instance"
    return answer


@pytest.mark.parametrize(
    "run",
    [
        run_of(),
        run_of(stream(99.0)),
        run_of(stream(99.0), events=(kill(fate="nobody to hit"), kill(fate="gone before"))),
        run_of(stream(99.0), failed(), events=(kill(),)),
        run_of(stream(99.0), events=(kill(),), leaks=Leaks(counts={"decode#1 held": 2})),
        run_of(stream(99.0), events=(kill(),), leaks=Leaks(after_stop=["after the end: UB segment x"])),
        run_of(stream(99.0), events=(kill(fate="not replaced"),)),
    ],
    ids=["nothing done", "no fault", "nobody hit", "failed", "held", "left behind", "not replaced"],
)
def test_whatever_is_wrong_makes_it_unclean(run: ChaosRun) -> None:
    assert not find(run).clean


@pytest.mark.parametrize(
    ("sent_s", "ended_s", "cut"),
    [
        (FAULT_S - 5, FAULT_S - 1, False),
        (FAULT_S - 1, FAULT_S, True),
        (FAULT_S + 3, FAULT_S + 3, True),
        (FAULT_S + 5, FAULT_S + 9, False),
    ],
)
def test_nobody_could_have_answered_while_a_gateway_was_away(sent_s: float, ended_s: float, cut: bool) -> None:
    lost = failed()
    lost.sent_s, lost.ended_s = sent_s, ended_s
    for pool in ("gateway", "node"):
        found = find(run_of(stream(), lost, events=(kill(pool=pool),)))
        assert (found.cut, found.failed, found.clean) == (int(cut), int(not cut), cut)
    assert find(run_of(stream(), lost, events=(kill(),))).failed == 1, "an instance takes nothing along"


@pytest.mark.parametrize(
    "reason", ["no end after 120 s", "ProtocolError: in the stream: x", "ProtocolError: HTTP 400: x", ""]
)
def test_what_a_gateway_said_was_not_cut_with_another(reason: str) -> None:
    lost = failed()
    lost.sent_s, lost.ended_s, lost.reason = FAULT_S - 1, FAULT_S, reason
    found = find(run_of(stream(), lost, events=(kill(pool="gateway"),)))
    assert (found.cut, found.failed) == (0, 1)


def test_a_node_is_back_when_the_system_is_ready() -> None:
    lost = failed()
    lost.sent_s, lost.ended_s = FAULT_S + 8, FAULT_S + 8
    run = run_of(stream(), lost, events=(kill(pool="node"),))
    assert find(run).failed == 1
    run.events[0].replaced_s = 0.5  # while its gateways still answer
    run.downs.append(Down(FAULT_S + 1.25, FAULT_S + 10.5))
    found = find(run)
    assert (found.cut, found.failed, found.downs, found.longest_down_s) == (1, 0, 1, 9.25)
    assert found.clean
    run.most_down_s = 9.0
    assert not find(run).clean
    console = Console(width=160, record=True, file=io.StringIO())
    print_report(run, find(run), console)
    assert "down for 9.25 s" in console.export_text()


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_a_value_that_the_share_does_not_exceed(values: list[float], at: float) -> None:
    ordered = sorted(values)
    value = quantile(ordered, at)
    assert value in ordered
    assert value is not None
    assert sum(one <= value for one in ordered) >= at * len(ordered) - 1e-9
    assert sum(one < value for one in ordered) < at * len(ordered) + 1e-9


def test_quantiles_and_shares_are_honest() -> None:
    assert Pauses.of([]) == Pauses(0, None, None, None)
    assert share(9999, 10000) == "99.99 %"
    assert share(5, 5) == "100 %"
    assert share(0, 0) == "nothing to compare"
    assert RESUMED_GAP_S < PAUSE_S <= FELT_S


def bad_run() -> ChaosRun:
    run = run_of(stream(99.0, 102.0), failed(), events=(kill(), kill(2, "kvcache", "not replaced")))
    run.differences[0] = "choice 0: token 3 is 5, not 6"
    run.leaks.counts["decode#1 held"] = 2
    return run


def test_the_console_names_everything_that_is_wrong() -> None:
    run = bad_run()
    console = Console(width=160, record=True, file=io.StringIO())
    print_report(run, find(run), console)
    text = console.export_text()
    for words in (
        "1 lost, 1 different, 1 left behind, 1 not replaced",
        "token 3 is 5",
        "503",
        "held = 2",
        "max 2.00 s",
    ):
        assert words in text

    run = run_of(stream(99.0), events=(kill(),))
    console = Console(width=160, record=True, file=io.StringIO())
    print_report(run, find(run), console)
    assert "nothing lost, nothing different, nothing left behind" in console.export_text()


def test_the_page_and_the_data_tell_the_same() -> None:
    run = bad_run()
    value = json.loads(report_json(run, find(run)))
    assert value["clean"] is False
    assert (value["failed"], value["exact"], value["compared"]) == (1, 0, 1)
    assert value["lost_requests"][0]["reason"] == "HTTP 503: <b>no</b> instance"
    assert value["events"][0]["target"] == "decode#1"
    assert "at_clock_s" not in value["events"][0]
    assert len(value["samples"]) == 5

    events = (kill(), kill(2, "kvcache"), kill(3, fate="nobody to hit"))
    faults, flight, *_ = charts_of(report_page(run := run_of(stream(99.0), events=events), find(run)))
    assert faults["lanes"] == ["decode", "kvcache"]
    assert [bar[:2] + bar[4:5] for bar in faults["bars"]] == [
        [0, 50.0, "1: kill decode#1: replaced"],
        [1, 50.0, "2: kill kvcache#1: replaced"],
    ]
    assert flight["marks"] == [{"name": "kill", "color": "red", "xs": [50.0]}]
    assert flight["x"] == {"unit": "clock", "low": 0.0, "high": 60.0}


def charts_of(page: str) -> list[dict[str, Any]]:
    """The data of its plots."""
    found: list[dict[str, Any]] = json.loads(page.split('id="chart-data">')[1].split("</script>")[0])
    return found


def test_every_fault_is_named_with_its_signal_and_what_came_of_it() -> None:
    lost = failed()
    lost.sent_s, lost.ended_s = FAULT_S - 1, FAULT_S
    frozen = Event(3, FaultKind.FREEZE, 20.0, 70.0, 20.0, "decode", "decode#2", 8, lasts_s=2.5, fate="survived")
    events = (kill(), kill(2, "gateway"), frozen, Event(4, FaultKind.CANCEL_BURST, 30.0, 80.0, 30.0, fate="passed"))
    run = run_of(stream(99.0, 102.0), lost, events=events)
    rows = [list(row.cells) for row in event_table(run).rows]
    assert [row[:-1] for row in rows] == [
        ["1", "50.0 s", "kill", "decode", "decode#1", "7", "SIGKILL", "–"],
        ["2", "50.0 s", "kill", "gateway", "gateway#1", "7", "SIGKILL", "–"],
        ["3", "20.0 s", "freeze", "decode", "decode#2", "8", "SIGSTOP", "2.50 s"],
        ["4", "30.0 s", "cancel burst", "–", "–", "–", "clients leave", "–"],
    ]
    assert [row[-1] for row in rows] == [
        "replaced after 4.00 s; 1 stream went on after 2.00 s at most",
        "replaced after 4.00 s; 1 request was cut or refused in the meantime",
        "survived; no stream stood still",
        "passed",
    ]
    assert json.loads(report_json(run, find(run)))["events"][2]["outcome"] == rows[2][-1]


def test_the_page_stands_alone_and_escapes_what_it_is_told() -> None:
    run = bad_run()
    page = report_page(run, find(run))
    assert [chart["id"] for chart in charts_of(page)] == ["faults", "flight", "tokens", "resumed", "replicas"]
    assert "<b>no</b>" not in page
    assert "&lt;model&gt;" in page
    assert not re.search(r"<[^<>]+ (src|href)=\"(?!data:|#)", page)
    assert "Not clean" in page
    clean = run_of(stream(99.0), events=(kill(),))
    assert "Nothing lost, nothing different" in report_page(clean, find(clean))

    run = ChaosRun("test", 0, "abc", "model")
    assert len(charts_of(report_page(run, find(run)))) == 5
