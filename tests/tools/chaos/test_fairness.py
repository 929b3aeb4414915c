"""Latencies of a tenant during another's flood: the counted requests, and the permitted increase."""

import io

import pytest
from rich.console import Console

from hardware.faults import FaultKind
from serving.tools.chaos.asks import COMPLETIONS, Ask, ChoiceSoFar, StreamedAnswer
from serving.tools.chaos.chaos_page import report_page
from serving.tools.chaos.chaos_result import Event
from serving.tools.chaos.chaos_tables import print_report
from serving.tools.chaos.findings import beside_floods, find, most_beside_flood
from tests.tools.chaos.made import BEGUN_S, STEP_S, loss, run_of

SHORT = Ask(1, "short", COMPLETIONS, {"stream": True, "max_tokens": 3})
FLOOD = Event(1, FaultKind.FLOOD, 20.0, BEGUN_S + 20, 20.0, lasts_s=10.0, fate="passed")


def short(at_s: float, first_s: float, burst: int | None = None) -> StreamedAnswer:
    """Three tokens, the first after `first_s`, the others one step apart."""
    times = [BEGUN_S + at_s + first_s + step * STEP_S for step in range(3)]
    choice = ChoiceSoFar([1] * 3, finish="length", arrivals=[(at, 1) for at in times])
    return StreamedAnswer(SHORT, BEGUN_S + at_s, burst, [choice], "finished", ended_s=times[-1])


def test_the_limit_is_twice_alone_and_one_step() -> None:
    assert most_beside_flood(0.1, 0.02) == pytest.approx(0.22)
    for beside_s, fair in ((0.219, True), (0.221, False)):
        first, whole = beside_floods([FLOOD], [short(10, 0.1), short(25, beside_s)])
        assert first.fair is fair
        assert (first.alone_p99_s, first.beside_p99_s, first.limit_s) == pytest.approx((0.1, beside_s, 0.22))
        assert (whole.alone_p99_s, whole.limit_s) == pytest.approx((0.14, 0.3))
        assert whole.fair


def test_only_what_met_the_flood_and_nothing_else_is_beside_it() -> None:
    answers = [
        short(10, 0.1),
        short(19.8, 5.0),  # sent before, waited into it: neither
        short(22, 0.2),
        short(24, 9.0, burst=1),  # the flood's own
        short(28.0, 3.0),  # met the loss, too
        short(30.2, 4.0),  # sent when the flood's streams were being dropped
        short(45, 0.1),
    ]
    first, whole = beside_floods([FLOOD, loss(29.0, number=2)], answers)
    assert (first.alone, first.beside) == (whole.alone, whole.beside) == (2, 1)
    assert first.beside_p99_s == pytest.approx(0.2)
    assert beside_floods([loss(29.0)], answers) == ()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([short(10, 0.1), short(25, 0.1)], None),
        ([short(10, 0.1), short(25, 0.5)], "first token p99 500 ms (1), alone 100 ms (1), at most 220 ms is fair"),
        ([short(25, 0.1)], "alone – (0), at most – is fair"),
    ],
    ids=["fair", "kept waiting", "nothing shows it"],
)
def test_a_run_that_kept_a_tenant_waiting_is_not_clean(answers: list[StreamedAnswer], told: str | None) -> None:
    run = run_of(*answers, events=(FLOOD,))
    found = find(run)
    assert found.clean is (told is None)
    out = io.StringIO()
    print_report(run, found, Console(file=out, width=400))
    assert "beside flood  first token p99" in out.getvalue()
    assert ("kept waiting by another tenant" in out.getvalue()) is (told is not None)
    assert "first token during a flood" in report_page(run, found)
    if told is not None:
        assert "during another tenant's flood: first token p99 " in out.getvalue()
        assert told in out.getvalue()
