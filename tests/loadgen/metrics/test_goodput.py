"""SLOs: how they are written, and who kept them."""

import pytest

from loadgen.errors import UsageError
from loadgen.metrics.goodput import evaluate, parse_slo
from loadgen.record import Outcome
from tests.loadgen.metrics.stamps import failed, record


def test_both_ways_of_writing() -> None:
    assert parse_slo(["ttft=500ms,tpot=50ms"]) == {"ttft": 0.5, "tpot": 0.05}
    assert parse_slo(["ttft:500", "tpot:50", "e2el:5000"]) == {"ttft": 0.5, "tpot": 0.05, "e2e": 5.0}
    assert parse_slo(["ttft=2"]) == {"ttft": 2.0}


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttfb=1s", "ttft=fast", "ttft=0", "ttft=1s,ttft=2s", "e2e=1s,e2el=2s", "ttft=1.2.3s", "ttft=."]
)
def test_mistakes(text: str) -> None:
    with pytest.raises(UsageError, match="--slo"):
        parse_slo([text])


def test_who_is_good() -> None:
    """TTFT 1.0 and TPOT 0.5 for the first; the second is too late, the third too slow, the fourth failed."""
    records = [
        record([2.0, 2.5, 3.0]),
        record([2.6, 3.1, 3.6]),
        record([2.0, 3.0, 4.0]),
        failed(),
        record([2.0], outcome=Outcome.CANCELLED),
        record([2.0], outcome=Outcome.UNFINISHED),
        record([2.0]),
    ]
    found = evaluate(records, {"ttft": 1.5, "tpot": 0.75})
    assert (found.good, found.counted, found.untestable) == (2, 5, 1)
    assert found.attainment == pytest.approx(0.4)
    assert found.each == {"ttft": pytest.approx(0.6), "tpot": pytest.approx(0.6)}
    assert found.wilson95[0] < 0.4 < found.wilson95[1]


def test_waiting_before_the_send_counts() -> None:
    assert evaluate([record([2.0])], {"ttft": 0.9}).good == 0
    assert evaluate([record([2.0], intended_s=1.5)], {"ttft": 0.9}).good == 1


def test_whole_answers_have_no_first_token_to_judge() -> None:
    found = evaluate([record([], ended_s=9.0), record([2.0])], {"ttft": 1.5})
    assert (found.good, found.untestable) == (2, 1)


def test_nothing_counted() -> None:
    assert evaluate([], {"ttft": 1.0}).attainment == 0.0
