"""What a gateway's admission queue is asked, as values for the decision log."""

from typing import Protocol

from serving.policy.admission_queue import AdmissionQueue
from serving.policy.decision_log import CallRecord
from serving.policy.gateway_admission import AdmissionDecision, Applicant


class HasQueue(Protocol):
    """A gateway's brain, as far as it matters here."""

    queue: AdmissionQueue


class Offer(CallRecord, frozen=True):
    """A request comes: may it wait?"""

    one: Applicant
    running: int
    now: float
    is_open: bool

    def on(self, brain: HasQueue) -> AdmissionDecision:
        """Carry it out."""
        return brain.queue.offer(self.one, self.running, self.now, self.is_open)


class Take(CallRecord, frozen=True):
    """Who starts now?"""

    running: int
    now: float

    def on(self, brain: HasQueue) -> int | None:
        """Carry it out."""
        return brain.queue.take(self.running, self.now)


class Finished(CallRecord, frozen=True):
    """A seat is free again."""

    residence_s: float

    def on(self, brain: HasQueue) -> None:
        """Carry it out."""
        brain.queue.finished(self.residence_s)


class Withdraw(CallRecord, frozen=True):
    """A request gives up waiting."""

    number: int

    def on(self, brain: HasQueue) -> bool:
        """Carry it out."""
        return brain.queue.withdraw(self.number)


class Overdue(CallRecord, frozen=True):
    """Whose time is over?"""

    now: float
    before: float | None = None

    def on(self, brain: HasQueue) -> tuple[int, ...]:
        """Carry it out."""
        return brain.queue.overdue(self.now, self.before)


AdmissionCall = Offer | Take | Finished | Withdraw | Overdue
