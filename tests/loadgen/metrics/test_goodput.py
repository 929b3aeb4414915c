"""SLOs: how they are written, and who kept them."""

from collections.abc import Sequence
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.metrics.goodput import evaluate, parse_slo
from loadgen.record import RequestOutcome, RequestRecord
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
        record([2.0, 2.5, 3.0]), record([2.6, 3.1, 3.6]), record([2.0, 3.0, 4.0]), failed(),
        record([2.0], outcome=RequestOutcome.CANCELLED),
        record([2.0], outcome=RequestOutcome.UNFINISHED, ended_s=2.0), record([2.0]),
    ]  # fmt: skip
    found = evaluate(records, {"ttft": 1.5, "tpot": 0.75})
    assert (found.good, found.counted, found.untestable) == (2, 5, 1)
    assert found.attainment == pytest.approx(0.4)
    assert found.each == {"ttft": pytest.approx(0.6), "tpot": pytest.approx(0.6)}
    assert found.wilson95[0] < 0.4 < found.wilson95[1]
    assert evaluate([record([2.0])], {"ttft": 0.9}).good == 0
    assert evaluate([record([2.0], intended_s=1.5)], {"ttft": 0.9}).good == 1
    found = evaluate([record([], ended_s=9.0), record([2.0])], {"ttft": 1.5})
    assert (found.good, found.untestable) == (2, 1)
    assert evaluate([], {"ttft": 1.0}).attainment == 0.0


def cut(chunks: Sequence[float] = (), **fields: Any) -> RequestRecord:
    """Due at 1.0, planned for 11 tokens, and overtaken by the end of the run at 6.0."""
    usual: dict[str, Any] = {
        "outcome": RequestOutcome.UNFINISHED,
        "ended_s": 6.0,
        "output_tokens": None,
        "planned_output_tokens": 11,
    }
    return record(chunks, **(usual | fields))


@pytest.mark.parametrize(
    ("late", "targets"),
    [
        (cut(), {"ttft": 4.5}), (cut(started_s=None), {"ttft": 4.5}), (cut([2.5]), {"ttft": 1.0}),
        (cut([2.5]), {"e2e": 4.5}), (cut([2.5, 3.0]), {"itl": 2.5}), (cut([2.0, 3.0]), {"tpot": 0.35}),
        (cut([2.5], first_answer_s=None), {"ttfo": 4.5}),
    ],
)  # fmt: skip
def test_what_the_end_of_the_run_cut_is_missed_if_it_was_too_late_by_then(
    late: RequestRecord, targets: dict[str, float]
) -> None:
    found = evaluate([record([2.0]), late], targets | {"ntpot": 100.0})
    assert (found.good, found.counted) == (1, 2)
    assert found.each == dict.fromkeys(targets, 0.5) | {"ntpot": 1.0}


@pytest.mark.parametrize(
    ("open_", "targets"),
    [
        (cut(), {"ttft": 5.5, "e2e": 5.5}),
        (cut([2.0, 3.0]), {"ttft": 1.5, "tpot": 0.45, "itl": 3.5}),
        (cut([2.0, 3.0], planned_output_tokens=None), {"tpot": 0.1}),
        (cut(ended_s=None), {"ttft": 0.5}),
        (cut(conduct="disconnect"), {"ttft": 0.5}),
    ],
)
def test_what_was_cut_while_it_could_still_be_good_says_nothing(
    open_: RequestRecord, targets: dict[str, float]
) -> None:
    assert evaluate([open_], targets).counted == 0
