"""Background requests in the gateway's queue: behind all others, and at no cost to them."""

from collections import Counter

from serving.gateway.core.fair_lines import FairLines
from serving.gateway.core.gateway_admission import AdmissionLimits, QueuedRequest
from serving.gateway.core.waiting_room import queued_request
from serving.ids import RequestId, SequenceId
from serving.values.jobs import GenerationJob
from serving.values.sequence import BACKGROUND_PRIORITY, SamplingParams, SequenceSpec


def asks(number: int, key: str, priority: int = 0) -> QueuedRequest:
    return QueuedRequest(number, 1, 10, 0, 1e9, key, priority=priority)


def start_next(lines: FairLines) -> QueuedRequest:
    one = lines.next()
    assert one is not None
    lines.start(one)
    return one


def test_background_requests_start_when_no_other_waits_and_cost_the_others_nothing() -> None:
    lines = FairLines()
    for n in range(20):
        lines.add(asks(n, "a/background", BACKGROUND_PRIORITY))
    assert [start_next(lines).key for _ in range(8)] == ["a/background"] * 8
    for n in range(20, 40):
        lines.add(asks(n, "ab"[n % 2]))
    assert lines.share("a", 1.0) == 0.5, "a background line takes no share"
    assert Counter(start_next(lines).key for _ in range(20)) == {"a": 10, "b": 10}, "not even every eighth start"
    lines.check()
    assert start_next(lines).key == "a/background"


def test_a_background_request_has_a_line_of_its_own_and_none_in_instances() -> None:
    spec = SequenceSpec(SequenceId("s"), (1,), SamplingParams(max_tokens=4), priority=BACKGROUND_PRIORITY)
    job = GenerationJob(RequestId("r"), (spec,), key="acme/1")
    assert queued_request(1, job, 0.0).key == "acme/1/background"
    limits = AdmissionLimits(12, 1000, 1, shared=True)
    assert limits.line("acme/1", spec.priority) == 0 != limits.line("acme/1")
