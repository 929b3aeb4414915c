"""The admission queue against a plain model: nothing is lost, nothing starts twice, bounds hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serving.gateway.core.admission_queue import AdmissionQueue
from serving.gateway.core.gateway_admission import AdmissionLimits, Applicant

LIMITS = AdmissionLimits(max_queued_requests=8, max_queued_tokens=1500, max_running_sequences=4, shared=True)
LARGEST = 2000


class QueueMachine(RuleBasedStateMachine):
    """Requests of three keys come, start, end, give up and run out of time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(LIMITS)
        self.now = 0.0
        self.waiting: dict[int, Applicant] = {}
        self.running: dict[int, tuple[Applicant, float]] = {}
        self.open = True
        self.number = 0

    @property
    def seats(self) -> int:
        return sum(one.sequences for one, _ in self.running.values())

    @rule(
        key=st.sampled_from(["", "a", "b"]),
        tokens=st.integers(1, LARGEST),
        sequences=st.integers(1, 6),
        priority=st.integers(-2, 2),
        time_left=st.floats(0.1, 60.0),
    )
    def come(self, key: str, tokens: int, sequences: int, priority: int, time_left: float) -> None:
        self.number += 1
        weight = 2.0 if key == "b" else 1.0
        one = Applicant(self.number, sequences, tokens, 10, self.now + time_left, key, weight, priority)
        decision = self.queue.offer(one, self.seats, self.now, self.open)
        if decision.accepted:
            assert decision.retry_after_s == 0
            self.waiting[one.number] = one
        else:
            assert 1 <= decision.retry_after_s <= 60
            assert self.waiting or not self.open or self.seats
        self.start_all()

    def start_all(self) -> None:
        """As a gateway does after everything."""
        while self.open and (number := self.queue.take(self.seats, self.now)) is not None:
            one = self.waiting.pop(number)
            assert not self.seats or self.seats + one.sequences <= LIMITS.max_running_sequences
            self.running[number] = one, self.now

    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        if self.running:
            number = sorted(self.running)[which % len(self.running)]
            _, began = self.running.pop(number)
            self.queue.finished(self.now - began)
            self.start_all()

    @rule(which=st.integers(0, 100))
    def leave(self, which: int) -> None:
        if self.waiting:
            number = sorted(self.waiting)[which % len(self.waiting)]
            del self.waiting[number]
            assert self.queue.withdraw(number)
            self.start_all()
        assert not self.queue.withdraw(10**9)

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        late = {number for number, one in self.waiting.items() if one.deadline < self.now}
        assert set(self.queue.overdue(self.now)) == late
        for number in late:
            del self.waiting[number]
        self.start_all()

    @rule(is_open=st.booleans())
    def instances(self, is_open: bool) -> None:
        self.open = is_open
        self.start_all()

    @invariant()
    def all_are_known(self) -> None:
        self.queue.check()
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == sum(one.tokens for one in self.waiting.values())
        assert (self.queue.oldest_since is None) == (not self.waiting)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.waiting) <= LIMITS.max_queued_requests
        half = LIMITS.max_queued_tokens // 2
        assert len(self.waiting) == 1 or self.queue.tokens <= LIMITS.max_queued_tokens + LARGEST - half

    @invariant()
    def no_seat_stays_empty(self) -> None:
        if self.open and self.waiting:
            assert self.seats, "something waits although nothing runs"

    def teardown(self) -> None:
        """Whoever waits still gets in, every one of them, once nothing else runs."""
        self.open = True
        self.running.clear()
        while self.waiting:
            self.start_all()
            self.running.clear()
        assert self.queue.take(0, self.now) is None


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
