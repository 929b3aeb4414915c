"""Order by job: earlier sessions' turns first, bounded overtaking, and fairness between keys as without it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from serving.gateway.core import job_order
from serving.gateway.core.admission_queue import AdmissionQueue
from serving.gateway.core.concurrency import ConcurrencyLedger, PoolSlots
from serving.gateway.core.fair_lines import OLDEST_EVERY
from serving.gateway.core.gateway_admission import AdmissionLimits, QueuedRequest
from serving.gateway.core.job_order import HEAD_START_S, IDLE_S, JobOrder
from serving.gateway.core.waiting_room import queued_request
from tests.gateway.core.bench import job

LIMITS = AdmissionLimits(40, 100_000, 1, shared=True, by_job=True)


def asks(number: int, session: str = "", key: str = "a", priority: int = 0, deadline: float = 1e9) -> QueuedRequest:
    return QueuedRequest(number, 1, 100, 0, deadline, key, priority=priority, session=session)


def started(queue: AdmissionQueue, now: float) -> list[int]:
    """All that wait, in order of their start."""
    numbers = []
    while (number := queue.take(0, now)) is not None:
        numbers.append(number)
    return numbers


def test_turns_of_earlier_sessions_start_before_first_turns_of_later_ones() -> None:
    queue = AdmissionQueue(LIMITS)
    for number, (session, now) in enumerate([("old", 0.0), ("older", -5.0)]):
        queue.offer(asks(number, session), 0, now)
    assert started(queue, 1.0) == [1, 0]
    arrivals = [("new", 10.0), ("", 11.0), ("newer", 12.0), ("old", 20.0), ("older", 21.0), ("new", 22.0)]
    for number, (session, now) in enumerate(arrivals, 10):
        assert queue.offer(asks(number, session), 1, now).accepted
    assert started(queue, 30.0) == [14, 13, 10, 15, 11, 12]
    plain = AdmissionQueue(replace(LIMITS, by_job=False))
    for number, (session, now) in enumerate(arrivals, 10):
        plain.offer(asks(number, session), 1, now)
    assert started(plain, 30.0) == [10, 11, 12, 13, 14, 15]


def test_a_first_turn_is_overtaken_for_a_bounded_time() -> None:
    queue = AdmissionQueue(LIMITS)
    queue.offer(asks(0, "old"), 0, 0.0)
    assert started(queue, 0.0) == [0]
    queue.offer(asks(1, "new"), 1, 1000.0)
    queue.offer(asks(2, "old"), 1, 1000.0 + HEAD_START_S + 1.0)
    assert started(queue, 2000.0) == [1, 2]
    assert queue.offer(asks(3, "new", priority=-1), 1, 2000.0).accepted
    queue.offer(asks(4, "old"), 1, 2000.0)
    assert started(queue, 2000.0) == [3, 4], "priorities come first"


def test_sessions_belong_to_keys_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_order, "MAX_SESSIONS", 3)
    order = JobOrder()
    assert order.due("a", "one", 10.0) == 10.0
    assert [order.due("b", "one", 20.0), order.due("a", "", 20.0), order.due("a", "one", 20.0)] == [20.0, 20.0, 10.0]
    assert order.due("a", "one", 1000.0) == 1000.0 - HEAD_START_S
    for number in range(10):
        order.due("a", f"many {number}", 1000.0)
    assert len(order) == 3 + 1, "the other key's is still known"
    assert order.due("b", "one", 30.0) == 20.0
    assert order.due("b", "one", 31.0 + IDLE_S) == 31.0 + IDLE_S, "it begins anew"


def test_a_turn_that_overtakes_is_not_refused_for_what_it_overtakes() -> None:
    queue = AdmissionQueue(replace(LIMITS, shared=False))
    queue.offer(asks(0, "old"), 0, 0.5)
    assert started(queue, 0.5) == [0]
    for number in range(1, 30):
        queue.offer(asks(number), 1, 1.0)
    for number in range(1, 11):  # one start a second
        assert queue.take(0, 1.0 + number) is not None
        assert queue.take(1, 1.0 + number) is None
    assert not queue.offer(asks(50, "new", deadline=20.0), 1, 11.0).accepted, "nineteen are before it"
    assert queue.offer(asks(51, "old", deadline=20.0), 1, 11.0).accepted


def test_a_job_has_the_session_of_its_request() -> None:
    assert queued_request(1, replace(job(), session="s"), 0.0).session == "s"
    assert queued_request(1, job(), 0.0).session == ""


def test_one_key_alone_leaves_no_slots_to_others() -> None:
    pools = PoolSlots(4, 1000, 1000, 100_000, 100_000, apart=False)
    held = []
    for shared in (True, False):
        ledger = ConcurrencyLedger(shared=shared)
        ledger.update(pools, 3, 0.0)
        ledger.start("x", "a", 10, 10, 0.0)
        held.append(ledger.held(asks(1)))
        ledger.start("y", "a", 5000, 10, 0.0)
        ledger.start("z", "a", 5000, 10, 0.0)
        assert ledger.held(asks(1)), "two steps of prompts are in flight"
    assert held == [True, False]


class JobOrderMachine(RuleBasedStateMachine):
    """Requests of two keys against a model, beside a queue in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(LIMITS)
        self.twin = AdmissionQueue(replace(LIMITS, by_job=False))
        self.now = 1000.0
        self.number = 0
        self.waits: dict[int, tuple[float, QueuedRequest]] = {}
        self.twins: dict[int, str] = {}
        self.begun: dict[tuple[str, str], float] = {}
        self.starts = {"a": 0, "b": 0}

    @rule(
        key=st.sampled_from("ab"),
        session=st.sampled_from(["", "x", "y", "z"]),
        priority=st.sampled_from([0, 0, 0, -1]),
        wait_s=st.sampled_from([0.0, 1.0, 50.0, 150.0]),
    )
    def offer(self, key: str, session: str, priority: int, wait_s: float) -> None:
        self.now += wait_s
        self.number += 1
        one = replace(asks(self.number, session, key, priority), mark=self.number)
        decision = self.queue.offer(one, 1, self.now)
        assert decision == self.twin.offer(one, 1, self.now)
        begun = self.begun.setdefault((key, session), self.now) if session else self.now
        if decision.accepted:
            self.waits[self.number] = self.now, replace(one, due=max(begun, self.now - HEAD_START_S))
            self.twins[self.number] = key

    @rule()
    def take(self) -> None:
        number, other = self.queue.take(0, self.now), self.twin.take(0, self.now)
        assert (number is None) == (other is None) == (not self.waits)
        if number is None or other is None:
            return
        arrived, one = self.waits.pop(number)
        assert one.key == self.twins.pop(other), "keys take turns as without an order of jobs"
        rivals = [(at, rival) for at, rival in self.waits.values() if rival.key == one.key]
        if self.starts[one.key] % OLDEST_EVERY == OLDEST_EVERY - 1:
            assert all(one.number < rival.number for _, rival in rivals)
        else:
            mine = (one.priority, one.due, one.number)
            assert all(mine < (rival.priority, rival.due, rival.number) for _, rival in rivals)
            overtaken = [at for at, rival in rivals if rival.number < one.number and rival.priority == one.priority]
            assert all(arrived - at <= HEAD_START_S for at in overtaken)
        self.starts[one.key] += 1

    @precondition(lambda self: self.waits)
    @rule(which=st.integers(0, 100))
    def leave(self, which: int) -> None:
        number = list(self.waits)[which % len(self.waits)]
        _, one = self.waits.pop(number)
        assert self.queue.withdraw(number)
        other = next(number for number, key in self.twins.items() if key == one.key)
        del self.twins[other]
        assert self.twin.withdraw(other)

    @invariant()
    def balances(self) -> None:
        self.queue.check()
        assert len(self.queue) == len(self.waits)


JobOrderMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestJobOrderMachine = JobOrderMachine.TestCase
