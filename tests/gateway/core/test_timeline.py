"""Parts of a time line are contiguous, for any reports of instances and any order of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.core import timeline as t
from serving.gateway.core.timeline import TimelineShelf, largest_cause, seconds_by_kind
from serving.gateway.core.timeline_builder import MOST_PARTS, MOST_RUNS, RequestBuilder
from serving.ids import RequestId, SequenceId
from serving.values.expert_map import SessionTimes
from serving.values.jobs import GenerationJob
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.values.visit_times import (
    CHECKSUMS,
    DECODE,
    HANDOFF,
    POOL_GET,
    PREFILL,
    QUEUE,
    WAIT,
    Leg,
    StepTime,
    VisitTimes,
)  # fmt: skip


def job(choices: int = 1, name: str = "r", namespace: str = "default") -> GenerationJob:
    specs = [
        SequenceSpec(SequenceId(f"{name}/{i}"), (1, 2, 3), SamplingParams(), namespace=namespace)
        for i in range(choices)
    ]
    return GenerationJob(RequestId(name), tuple(specs))


def answered(ended: float, outcome: t.Outcome = "stop", *names: str, arrived: float = 0.0) -> t.Answered:
    return t.Answered(arrived, ended, outcome, names)


def assert_whole(times: t.RequestTimes) -> None:
    """Assert that every choice's parts cover the request without gap or overlap."""
    for choice in times.choices:
        assert sum(part.seconds for part in choice.parts) == pytest.approx(times.total_s, abs=1e-6)
        at = 0.0
        for part in choice.parts:
            assert part.seconds >= 0.0
            assert part.start_s == pytest.approx(at, abs=1e-6)
            at = part.start_s + part.seconds


def disaggregated() -> t.RequestTimes:
    """Waits 1 s, is prefilled on one host, handed off, and decodes ten tokens on another."""
    builder = RequestBuilder(job(), 0.5)
    choice = builder.choice(0)
    choice.sent(1.5, "prefill#a", "n0", handoff=False)
    legs = (Leg(QUEUE, 0.1), Leg(POOL_GET, 0.2, nbytes=4096), Leg(PREFILL, 0.5, 100, 0, 0.05), Leg(WAIT, 0.1))
    choice.add_visit(VisitTimes(SequenceId("r/0@1"), legs), "")
    choice.add_visit(VisitTimes(SequenceId("r/0@1"), (Leg(CHECKSUMS, 0.05),)), "")
    choice.news(2.5, 1, None)
    choice.sent(2.6, "decode#b", "n1", handoff=True)
    pull = (Leg(HANDOFF, 0.3, nbytes=1 << 20), Leg(DECODE, 0.1, 1))
    choice.add_visit(VisitTimes(SequenceId("r/0@2"), pull, "prefill#a"), "n0")
    choice.news(3.1, 1, StepTime(1000.0, 50.0, 0.1, 0.01))
    for step in range(1, 9):
        time = StepTime(1000.0 + step * 0.19, 50.0 + step * 0.15, 0.1, 0.01, SessionTimes(0.01, 0.02, 0.03, 6))
        choice.news(3.1 + step * 0.2, 1, time, last=step == 8)
    builder.over(4.7)
    return builder.times(answered(4.75), 1e9)


def test_every_party_is_in_its_place() -> None:
    times = disaggregated()
    assert_whole(times)
    sums = seconds_by_kind(times.choices[0].parts)
    assert times.total_s == pytest.approx(4.75)
    wanted = {
        t.TOKENIZING: 0.5, t.WAITING: 1.0, t.INSTANCE_QUEUE: 0.1, t.POOL_GET: 0.2, t.PREFILL: 0.5, t.STEP_WAIT: 0.1,
        t.CHECKSUMS: 0.05, t.ROUTING: 0.1, t.HANDOFF: 0.3, t.DECODE: 0.1 + 0.8, t.OTHER_STEPS: 8 * 0.05,
        t.BETWEEN: 8 * 0.04, t.NETWORK: 0.05 + 0.1 + 8 * 0.01, t.WRITING: 0.05,
    }  # fmt: skip
    assert sums == pytest.approx(wanted)
    (handoff,) = [part for part in times.choices[0].parts if part.kind == t.HANDOFF]
    assert (handoff.source, handoff.host, handoff.nbytes) == ("n0", "n1", 1 << 20)
    decode = [part for part in times.choices[0].parts if part.kind == t.DECODE]
    assert sum(part.tokens for part in decode) == 9
    assert decode[-1].predicted_s == pytest.approx(0.08)
    assert decode[-1].sessions.parts == pytest.approx({"A2E": 0.08, "experts": 0.16, "E2A": 0.24})
    assert decode[-1].sessions.rounds == 48
    assert times.choices[0].first_token_s == pytest.approx(2.5)
    assert times.tokens == 10
    assert times.cause.startswith("waiting for its turn took 1.00 s, 21 % of its 4.75 s")


def test_durations_that_exceed_their_gap_are_cut_in_proportion() -> None:
    """Clocks of two hosts may run at different speeds."""
    builder = RequestBuilder(job(), 0.0)
    builder.choice(0).sent(1.0, "p", "n0", handoff=False)
    builder.choice(0).add_visit(VisitTimes(SequenceId("r/0@1"), (Leg(QUEUE, 3.0), Leg(PREFILL, 1.0))), "")
    builder.choice(0).news(2.0, 1, None, last=True)
    times = builder.times(answered(2.0), 1e9)
    assert_whole(times)
    assert seconds_by_kind(times.choices[0].parts) == pytest.approx(
        {t.WAITING: 1.0, t.INSTANCE_QUEUE: 0.75, t.PREFILL: 0.25}
    )


def test_a_clock_that_is_an_hour_off_does_not_matter() -> None:
    builder = RequestBuilder(job(), 0.0)
    choice = builder.choice(0)
    choice.sent(0.0, "p", "n0", handoff=False)
    choice.news(1.0, 1, StepTime(-3600.0, 1.0, 0.1))
    choice.news(2.0, 1, StepTime(-3599.1, 1.9, 0.9), last=True)
    times = builder.times(answered(2.0), 1e9)
    assert_whole(times)
    assert seconds_by_kind(times.choices[0].parts)[t.DECODE] == pytest.approx(0.9)


def test_an_instance_that_is_lost_costs_a_resumption() -> None:
    builder = RequestBuilder(job(), 0.0)
    choice = builder.choice(0)
    choice.sent(0.0, "p", "n0", handoff=False)
    choice.news(1.0, 1, None)
    choice.news(1.5, 1, None)
    choice.sent(6.5, "q", "n1", handoff=False)
    choice.add_visit(VisitTimes(SequenceId("r/0@2"), (Leg(PREFILL, 0.5, 4),)), "")
    choice.news(7.0, 1, None, last=True)
    times = builder.times(answered(7.0), 1e9)
    assert_whole(times)
    assert (times.resumed, seconds_by_kind(times.choices[0].parts)[t.RESUMING]) == (1, 5.0)
    assert times.cause.startswith("resuming elsewhere took 5.00 s, 71 %")


def test_a_handoff_that_failed_is_tried_elsewhere() -> None:
    builder = RequestBuilder(job(), 0.0)
    choice = builder.choice(0)
    choice.sent(0.0, "p", "n0", handoff=False)
    choice.news(1.0, 1, None)
    choice.sent(1.0, "q", "n1", handoff=True)
    choice.sent(4.0, "s", "n2", handoff=True)
    choice.news(4.5, 1, None, last=True)
    times = builder.times(answered(4.5), 1e9)
    assert_whole(times)
    assert (times.resumed, seconds_by_kind(times.choices[0].parts)[t.RESUMING]) == (1, 3.0)


@pytest.mark.parametrize(("sent", "kind"), [(False, t.WAITING), (True, t.NO_NEWS)])
def test_what_never_got_an_answer_waited(sent: bool, kind: str) -> None:
    builder = RequestBuilder(job(), 0.0)
    if sent:
        builder.choice(0).sent(0.0, "p", "n0", handoff=False)
    builder.reason = "no instance came up"
    builder.over(15.0)
    times = builder.times(answered(15.0, "error"), 1e9)
    assert_whole(times)
    assert seconds_by_kind(times.choices[0].parts) == {kind: 15.0}
    assert (times.failed, times.reason) == (True, "no instance came up")


def test_a_choice_that_is_done_waits_for_the_others() -> None:
    builder = RequestBuilder(job(2), 0.0)
    for index in range(2):
        builder.choice(index).sent(0.0, "p", "n0", handoff=False)
        builder.choice(index).news(1.0 + 3.0 * index, 1, None, last=True)
    builder.over(4.0)
    times = builder.times(answered(4.0), 1e9)
    assert_whole(times)
    assert [choice.index for choice in times.choices] == [1, 0], "the last one first"
    assert seconds_by_kind(times.choices[1].parts)[t.OTHER_CHOICES] == 3.0
    assert times.cause.startswith(t.NETWORK), "of the choice that was last"


def test_a_request_with_many_choices_keeps_the_last_ones() -> None:
    builder = RequestBuilder(job(100), 0.0)
    for index in range(100):
        builder.choice(index).sent(0.0, "p", "n0", handoff=False)
        builder.choice(index).news(1.0 + index, 2, None, last=True)
    builder.over(100.0)
    times = builder.times(answered(100.0), 1e9)
    assert [choice.index for choice in times.choices] == [*range(99, 91, -1)]
    assert times.tokens == 200


def test_a_long_answer_has_few_parts() -> None:
    builder = RequestBuilder(job(), 0.0)
    choice = builder.choice(0)
    choice.sent(0.0, "p", "n0", handoff=False)
    for step in range(50_000):
        choice.news(step * 0.01, 1, StepTime(step * 0.009, step * 0.008, 0.007))
    times = builder.times(answered(500.0), 1e9)
    assert_whole(times)
    parts = times.choices[0].parts
    assert len(parts) < 4 * MOST_RUNS + 10 < MOST_PARTS
    assert sum(part.tokens for part in parts if part.kind == t.DECODE) == 49_999
    assert seconds_by_kind(parts)[t.DECODE] == pytest.approx(49_999 * 0.007, rel=1e-6)


SECONDS = st.floats(0.0, 10.0)
KINDS = st.sampled_from([QUEUE, WAIT, POOL_GET, PREFILL, HANDOFF, DECODE, CHECKSUMS, "unknown"])
LEGS = st.lists(st.builds(Leg, KINDS, SECONDS), max_size=4)
STEPS = st.none() | st.builds(StepTime, st.floats(-1e6, 1e6), SECONDS, SECONDS)
EVENTS = st.one_of(
    st.tuples(st.just("sent"), st.sampled_from("abc"), st.booleans()),
    st.tuples(st.just("add_visit"), LEGS, st.none()),
    st.tuples(st.just("news"), st.integers(0, 3), STEPS),
)


@given(st.lists(st.tuples(SECONDS, st.integers(0, 1), EVENTS), max_size=120), SECONDS, SECONDS, SECONDS)
def test_parts_sum_to_the_whole_whatever_happens(
    events: list[tuple[float, int, tuple[str, object, object]]], before: float, writing: float, over: float
) -> None:
    now = before
    builder = RequestBuilder(job(2), now)
    for after, index, (what, one, other) in events:
        now += after
        choice = builder.choice(index)
        if what == "sent":
            choice.sent(now, str(one), "n0", handoff=bool(other))
        elif what == "add_visit":
            choice.add_visit(VisitTimes(SequenceId("r/0@1"), tuple(one)), "n0")  # type: ignore[arg-type]
        else:
            choice.news(now, one, other)  # type: ignore[arg-type]
    builder.over(now + over)
    times = builder.times(answered(now + over + writing), 1e9)
    assert_whole(times)
    assert largest_cause(times.choices, times.total_s) or not times.total_s


def over_in(seconds: float, name: str, outcome: t.Outcome = "stop", namespace: str = "default") -> t.RequestTimes:
    return RequestBuilder(job(1, name, namespace), 0.0).times(answered(seconds, outcome, f"x-{name}"), 1e9)


def test_the_slowest_and_the_failed_are_kept_longest() -> None:
    shelf = TimelineShelf(40)
    shelf.add(over_in(99.0, "slow"))
    shelf.add(over_in(1.0, "failed", "error"))
    for number in range(1000):
        shelf.add(over_in(1.0 + number * 1e-6, f"r{number}"))
        assert len(shelf) <= 40
    assert shelf.find("slow", None) is not None
    assert shelf.find("x-failed", "default") is not None
    assert shelf.find("r999", None) is not None
    assert shelf.find("r3", None) is None
    assert shelf.choose("slowest", 2, None)[0].request_id == "x-slow"
    assert [one.request_id for one in shelf.choose("failed", 5, None)] == ["x-failed"]


def test_the_slowest_of_each_past_minute_is_found_after_an_overload() -> None:
    shelf = TimelineShelf(40)
    for minute, seconds in ((0, 2.0), (1, 9.0)):
        for number in range(300):
            name = f"m{minute}-{number}"
            ended = answered(seconds + number * 1e-6, "stop", name)
            shelf.add(RequestBuilder(job(1, name), 0.0).times(ended, 1e9 + 60 * minute))
            assert len(shelf) <= 40
    assert shelf.find("m0-299", None) is not None
    assert shelf.find("m0-1", None) is None


def test_a_tenant_finds_its_own_only() -> None:
    shelf = TimelineShelf(8)
    shelf.add(over_in(1.0, "a", namespace="acme"))
    shelf.add(over_in(1.0, "b", namespace="other"))
    assert shelf.find("a", "acme") is not None
    assert shelf.find("b", "acme") is None
    assert [one.namespace for one in shelf.choose("newest", 9, "acme")] == ["acme"]


def test_no_room_keeps_nothing() -> None:
    shelf = TimelineShelf(0)
    shelf.add(over_in(1.0, "a", "error"))
    assert len(shelf) == 0
