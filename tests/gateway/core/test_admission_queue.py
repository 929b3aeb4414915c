"""Admission: which requests may wait, which starts next, and the Retry-After of the others."""

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError
from serving.gateway.core.admission_queue import AdmissionQueue
from serving.gateway.core.fair_lines import OLDEST_EVERY, FairLines
from serving.gateway.core.gateway_admission import (
    GRACE_S,
    AdmissionDecision,
    AdmissionLimits,
    QueuedRequest,
    Reservation,
    RetryReservations,
)
from serving.values.throughput import MAX_RETRY_S

LIMITS = AdmissionLimits(max_queued_requests=4, max_queued_tokens=1000, max_running_sequences=2)
SHARED = AdmissionLimits(max_queued_requests=12, max_queued_tokens=100_000, max_running_sequences=1, shared=True)


def asks(number: int, tokens: int = 100, sequences: int = 1, deadline: float = 1e9, **more: Any) -> QueuedRequest:
    return QueuedRequest(number, sequences, tokens, 0, deadline, **more)


def full(limits: AdmissionLimits = LIMITS, **more: Any) -> AdmissionQueue:
    """A queue at its limit, before any measurement."""
    queue = AdmissionQueue(limits)
    for number in range(limits.max_queued_requests):
        assert queue.offer(asks(number, **more), 2, 0.0).accepted
    return queue


def start_next(lines: FairLines) -> QueuedRequest:
    one = lines.next()
    assert one is not None
    lines.start(one)
    return one


def drained(queue: AdmissionQueue) -> list[int]:
    numbers = []
    while (number := queue.take(0, 0.0)) is not None:
        numbers.append(number)
    return numbers


def test_what_fits_starts_at_once_and_what_does_not_waits_its_turn() -> None:
    queue = AdmissionQueue(LIMITS)
    assert queue.offer(asks(1), 0, 0.0) == AdmissionDecision(True, "starts at once")
    assert queue.take(0, 0.0) == 1
    assert queue.offer(asks(2, sequences=2), 1, 0.0).accepted
    assert queue.take(1, 0.0) is None
    assert queue.offer(asks(3), 1, 0.0).accepted
    assert queue.take(1, 0.0) is None, "a seat is free for the second, but the first is not overtaken"
    assert (len(queue), queue.tokens, queue.oldest_since) == (2, 200, 0.0)
    assert [queue.take(0, 5.0), queue.take(2, 5.0), queue.take(1, 6.0)] == [2, None, 3]
    assert (len(queue), queue.oldest_since) == (0, None)


def test_a_request_larger_than_all_seats_starts_when_nothing_runs() -> None:
    queue = AdmissionQueue(LIMITS)
    assert queue.offer(asks(1, sequences=9), 1, 0.0).accepted
    assert [queue.take(1, 0.0), queue.take(0, 1.0)] == [None, 1]


def test_both_bounds_hold_and_an_empty_queue_takes_anything() -> None:
    decision = full().offer(asks(9), 2, 0.0)
    assert decision == AdmissionDecision(False, "4 requests are queued, the limit is 4", 1.0)
    queue = AdmissionQueue(LIMITS)
    assert queue.offer(asks(1, 5000), 2, 0.0).accepted
    assert queue.offer(asks(2, 1), 2, 0.0).reason == "5000 prompt tokens are queued, the limit is 1000"
    none = AdmissionQueue(AdmissionLimits(0, 1000, 1))
    assert none.offer(asks(1), 0, 0.0).accepted
    assert none.take(0, 0.0) == 1
    assert not none.offer(asks(2), 1, 0.0).accepted


def test_a_large_request_needs_half_of_the_bound_free_and_is_not_followed() -> None:
    queue = AdmissionQueue(LIMITS)
    for number in (1, 2):
        assert queue.offer(asks(number, 251), 2, 0.0).accepted
    assert queue.offer(asks(3, 5000), 2, 0.0).reason == "502 prompt tokens are queued, the limit is 1000"
    assert queue.take(0, 0.0) == 1
    assert queue.offer(asks(3, 5000), 2, 0.0).accepted
    assert not queue.offer(asks(4, 1), 2, 0.0).accepted
    assert [queue.take(0, 0.0), queue.take(0, 0.0)] == [2, 3], "in its turn"
    assert queue.offer(asks(4, 1), 2, 0.0).accepted
    smallest = AdmissionQueue(AdmissionLimits(4, 1, 2))
    assert [smallest.offer(asks(n, 10), 2, 0.0).accepted for n in range(2)] == [True, False]


def test_while_no_instance_is_there_everything_waits() -> None:
    queue = AdmissionQueue(LIMITS)
    assert queue.offer(asks(1), 0, 3.0, is_open=False).accepted
    assert (len(queue), queue.oldest_since) == (1, 3.0)
    assert queue.offer(asks(2, 900), 0, 3.0, is_open=False).accepted
    assert not queue.offer(asks(3), 0, 3.0, is_open=False).accepted
    assert queue.withdraw(2)
    assert queue.overdue(20.0, before=3.0) == ()
    assert queue.overdue(20.0, before=3.5) == (1,)


def test_an_outage_that_is_over_does_not_make_the_queue_look_slow() -> None:
    queue = full()
    for second in range(1, 60):
        assert [queue.take(1, second), queue.take(2, second)] == [second - 1, None]
        assert queue.offer(asks(second + 3), 2, second).accepted
    refused = queue.offer(asks(100, mark=1), 2, 59.5, is_open=False)
    assert refused.retry_after_s == 3.0, "a start a second, and some caution"
    over = 90.0
    assert [queue.take(1, over), queue.take(2, over)] == [59, None]
    assert queue.offer(asks(63), 2, over).accepted
    assert queue.offer(asks(101), 2, over + 5.0).retry_after_s == 3.0, "the promise is void, the rate is as it was"


def test_an_outage_that_nobody_outlasts_is_no_time_of_a_slow_queue_either() -> None:
    queue = full()
    for second in range(1, 60):
        assert [queue.take(1, second), queue.take(2, second)] == [second - 1, None]
        assert queue.offer(asks(second + 3), 2, second).accepted
    assert len(queue.overdue(80.0, before=75.0)) == 4, "no instance came; they are told so"
    for number in range(63, 67):
        assert queue.offer(asks(number), 2, 3660.0).accepted
    assert [queue.take(1, 3661.0), queue.take(2, 3661.0)] == [63, None]
    assert queue.offer(asks(67), 2, 3661.0).accepted
    assert queue.offer(asks(68), 2, 3661.0).retry_after_s == 3.0


def test_who_overtakes_those_that_wait_is_not_too_late_because_of_them() -> None:
    queue = AdmissionQueue(AdmissionLimits(100, 100_000, 2))
    for number in range(50):
        assert queue.offer(asks(number), 2, 0.0).accepted
    for second in range(1, 60):
        assert queue.take(1, second) == second - 1
        assert queue.take(2, second) is None
        assert queue.offer(asks(second + 49), 2, second).accepted
    late = queue.offer(asks(200, deadline=69.0), 2, 59.0)
    assert (late.accepted, late.reason[:28]) == (False, "it could not start before it")
    assert queue.offer(asks(201, deadline=69.0, priority=-1), 2, 59.0).accepted
    assert not queue.offer(asks(202, deadline=59.5, priority=-1), 2, 59.0).accepted, "one of its own kind is before it"


def test_deadlines_pass_while_waiting_and_those_who_left_are_not_told() -> None:
    queue = AdmissionQueue(LIMITS)
    for number in range(4):
        queue.offer(asks(number, deadline=float(number)), 2, 0.0)
    assert queue.withdraw(1)
    assert not queue.withdraw(1)
    assert queue.overdue(2.0) == (0,)
    assert queue.overdue(2.5) == (2,)
    assert [queue.take(0, 3.0), queue.take(0, 3.0)] == [3, None]


def test_lower_priority_values_start_sooner_but_every_eighth_start_is_the_oldest() -> None:
    queue = AdmissionQueue(AdmissionLimits(100, 100_000, 1))
    queue.offer(asks(0, priority=10**9), 1, 0.0)
    for number in range(1, 20):
        queue.offer(asks(number, priority=-number), 1, 0.0)
    order = drained(queue)
    assert order[:7] == [19, 18, 17, 16, 15, 14, 13]
    assert order[7] == 0, "the least important one, because it is the oldest"
    assert order[8:15] == [12, 11, 10, 9, 8, 7, 6]


def test_one_greedy_key_leaves_places_and_starts_to_the_others() -> None:
    queue = AdmissionQueue(SHARED)
    taken = [queue.offer(asks(n, key="greedy", priority=-5), 1, 0.0).accepted for n in range(12)]
    assert taken.count(True) == 7
    assert [queue.offer(asks(20 + n, key="modest"), 1, 0.0).accepted for n in range(4)] == [True, True, True, False]
    assert queue.offer(asks(30, key="third"), 1, 0.0).accepted, "there is still a place for one who has none"
    order = drained(queue)
    assert [number for number in order[:6] if number >= 20] == [20, 30, 21]
    refused = queue.offer(asks(50, key="greedy"), 1, 0.0)
    assert refused.accepted


def test_a_key_with_long_prompts_leaves_room_for_the_tokens_of_others() -> None:
    queue = AdmissionQueue(SHARED)
    assert [queue.offer(asks(n, 30_000, key="greedy"), 1, 0.0).accepted for n in range(3)] == [True, True, False]
    assert queue.offer(asks(5, 30_000, key="greedy"), 1, 0.0).reason == (
        "60000 prompt tokens of the key are queued, 40000 more fit for all keys"
    )
    assert queue.offer(asks(9, 30_000, key="modest"), 1, 0.0).accepted


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_keys_share_by_tokens_and_weight_whatever_their_requests_look_like(weight: float, share: float) -> None:
    lines = FairLines()
    for n in range(400):
        lines.add(asks(2 * n, 10, key="small", weight=weight))
        lines.add(asks(2 * n + 1, 100, key="large"))
    given_to: Counter[str] = Counter()
    while sum(given_to.values()) < 4000:
        one = start_next(lines)
        given_to[one.key] += one.tokens
    assert given_to["small"] / sum(given_to.values()) == pytest.approx(share, abs=0.03)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 500), st.integers(0, 200)), min_size=30, max_size=120),
    st.tuples(st.sampled_from([1.0, 2.0]), st.sampled_from([1.0, 5.0]), st.just(1.0)),
)
def test_two_keys_that_always_wait_differ_by_two_requests_at_most(
    asked: list[tuple[str, int, int]], weights: tuple[float, float, float]
) -> None:
    lines, weight = FairLines(), dict(zip("abc", weights, strict=True))
    for number, (key, tokens, expected) in enumerate(asked):
        lines.add(QueuedRequest(number, 1, tokens, expected, 1e9, key, weight[key]))
    served = dict.fromkeys("abc", 0.0)
    largest = {k: max([(t + e) / weight[k] for key, t, e in asked if key == k], default=0.0) for k in "abc"}
    while all(lines.of(key)[0] for key in "abc"):
        one = start_next(lines)
        served[one.key] += (one.tokens + one.expected_tokens) / one.weight
        for first, second in ("ab", "bc", "ac"):
            assert abs(served[first] - served[second]) <= largest[first] + largest[second] + 1e-6


def test_a_key_that_was_away_does_not_catch_up() -> None:
    lines = FairLines()
    for n in range(100):
        lines.add(asks(n, 10, key="steady"))
    for _ in range(50):
        start_next(lines)
    for n in range(100, 110):
        lines.add(asks(n, 10, key="back"))
    assert Counter(start_next(lines).key for _ in range(10)) == {"steady": 5, "back": 5}


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60))
def test_nobody_waits_for_ever(priorities: list[int]) -> None:
    lines = FairLines()
    lines.add(asks(0, 1, priority=2**31 - 1))
    for number, priority in enumerate(priorities, 1):
        lines.add(asks(number, 1, priority=priority))
    for starts in range(1, OLDEST_EVERY + 1):
        one = start_next(lines)
        if one.number == 0:
            break
        lines.add(asks(1000 + starts, 1, priority=-(2**31)))  # a more important request is always queued
    assert starts <= OLDEST_EVERY


def worked(limits: AdmissionLimits = LIMITS) -> tuple[AdmissionQueue, float]:
    """A full queue from which a request of 100 tokens has started every half second."""
    queue, now = AdmissionQueue(limits), 0.0
    for number in range(limits.max_queued_requests):
        queue.offer(asks(number), 2, now)
    for number in range(100, 140):
        now += 0.5
        assert queue.take(1, now) is not None
        assert queue.take(2, now) is None
        assert queue.offer(asks(number), 2, now).accepted
    return queue, now


def test_the_told_time_grows_with_those_who_were_told_before_and_their_room_is_kept() -> None:
    queue, now = worked()
    told = [queue.offer(asks(200 + n, mark=200 + n), 2, now) for n in range(5)]
    assert [one.retry_after_s for one in told] == [2.0, 3.0, 4.0, 4.0, 5.0]
    queue.take(1, now + 0.3)
    assert not queue.offer(asks(200, mark=200), 2, now + 1.5).accepted, "too early"
    newcomer = queue.offer(asks(300), 2, now + 1.5)
    assert not newcomer.accepted
    found = re.fullmatch(
        r"(\d+) requests are queued and (\d+) were given a Retry-After, the limit is (\d+)", newcomer.reason
    )
    assert found is not None
    waiting, told_back, limit = map(int, found.groups())
    assert waiting <= limit < waiting + 1 + told_back
    assert queue.offer(asks(301, mark=200), 2, now + 2.0).accepted, "it comes when it was told to"
    queue.check()


def test_a_queue_that_runs_dry_is_open_to_newcomers_whatever_was_promised() -> None:
    queue, now = worked(AdmissionLimits(20, 10**6, 2))  # works off four in two seconds
    for n in range(50):
        queue.offer(asks(200 + n, mark=200 + n), 2, now)
    while len(queue) > 8:
        now += 0.5
        queue.take(1, now)
    assert not queue.offer(asks(300), 2, now).accepted
    while len(queue) > 2:
        now += 0.5
        queue.take(1, now)
    assert queue.offer(asks(301), 2, now).accepted


def test_who_asks_again_and_again_is_not_given_promise_after_promise() -> None:
    queue, now = worked(AdmissionLimits(20, 10**6, 2))
    for _ in range(500):
        last = queue.offer(asks(200, mark=200), 2, now).retry_after_s
    assert 20 < last < 60
    assert queue.offer(asks(201, mark=201), 2, now).retry_after_s <= last + 1
    queue.check()


def test_promises_that_nobody_claims_are_void_in_the_end() -> None:
    queue, now = worked()
    told = queue.offer(asks(200), 2, now).retry_after_s
    queue.take(1, now)
    assert not queue.offer(asks(201), 2, now + told - 0.5).accepted
    assert queue.offer(asks(202), 2, now + 2 + told + GRACE_S + 0.2).accepted


def test_far_away_times_are_told_but_nothing_is_kept() -> None:
    limits = AdmissionLimits(200, 10**9, 2)
    queue, now = AdmissionQueue(limits), 0.0
    for number in range(200):
        queue.offer(asks(number), 2, now)
    for number in range(1000, 1020):
        now += 2.0
        queue.take(1, now)
        queue.take(2, now)
        queue.offer(asks(number), 2, now)
    told = [queue.offer(asks(2000 + n), 2, now).retry_after_s for n in range(200)]
    assert max(told) == MAX_RETRY_S
    assert told.count(MAX_RETRY_S) > 100
    queue.check()


def test_what_could_not_start_in_time_is_refused_at_once() -> None:
    limits = AdmissionLimits(40, 10**9, 2)
    queue, now = worked(limits)
    queue.take(1, now)
    assert queue.offer(asks(500, deadline=now + 60.0), 2, now).accepted
    queue.take(1, now)
    refused = queue.offer(asks(501, deadline=now + 5.0), 2, now)
    assert re.fullmatch(
        r"it could not start before its deadline: \d+ prompt tokens are before it at \d+/s, 5.0 s are left",
        refused.reason,
    )
    assert refused.retry_after_s == pytest.approx(40 * 100 / 200 - 5.0, abs=2.0)
    assert queue.offer(asks(502, deadline=now + 5.0, key="other"), 2, now).accepted, "its own line is short"


def test_a_number_waits_once() -> None:
    lines = FairLines()
    lines.add(asks(1))
    with pytest.raises(LedgerError, match="is already queued"):
        lines.add(asks(1))


def test_ledgers_that_do_not_agree_are_found() -> None:
    lines, reservations = FairLines(), RetryReservations(8)
    lines.add(asks(1))
    assert reservations.book(1, Reservation(9.0, 10))
    for ledger, name in ((lines, "tokens"), (reservations, "requests"), (reservations, "tokens")):
        right = getattr(ledger, name)
        ledger.check()
        setattr(ledger, name, right + 1)
        with pytest.raises(LedgerError):
            ledger.check()
        setattr(ledger, name, right)


def test_those_who_left_are_cleared_away() -> None:
    lines = FairLines()
    for number in range(300):
        lines.add(asks(number, priority=-number))
    for number in range(299, 20, -1):
        lines.remove(number)
        lines.check()
    assert len(lines._lines[""].by_priority) < 200
    one = lines.next()
    assert one is not None
    assert one.number == 20


def test_promises_are_claimed_in_the_order_in_which_they_are_due() -> None:
    reservations = RetryReservations(8)
    assert reservations.book(1, Reservation(9.0, 10))
    assert reservations.book(1, Reservation(5.0, 20))
    assert not reservations.claim(1, 4.5)
    assert not reservations.claim(2, 5.0)
    assert reservations.claim(1, 5.0)
    reservations.check()
    assert (reservations.requests, reservations.tokens) == reservations.of("") == (1, 10)
    reservations.expire(9.0 + GRACE_S + 0.1)
    reservations.check()
    assert (reservations.requests, reservations.tokens) == reservations.of("") == (0, 0)
