"""Failures of a sequence: those in a row, and the instances that died with it.

A long stream sees many failures that it did not cause, so only failures without progress count: a token from decoding
clears the record. The token of a prompt does not, otherwise a request that fails as soon as it decodes would return
endlessly, each time with one token more; it only excuses the instance that computed the prompt and had no further task.

A request that crashes its engine is at first indistinguishable from the other requests on that engine. So two losses
without a token in between only lead to a trial: the request runs alone on an instance until it is decoded. It is
rejected as poisoned if that instance is lost as well, and no other at the same time: instances that die together (with
their host, or one after the other when the kernel kills them for memory) prove nothing about the request.
"""

from serving.ids import ReplicaId
from serving.values.news import FailKind

TRIAL_LOSSES = 2
"""Losses in a row, without a token in between, after which a sequence is tried alone."""


class Attempts:
    """Failures of one sequence since it last made progress."""

    __slots__ = ("_alone", "_max_failures", "_notified", "excluded", "in_a_row", "losses", "total")

    def __init__(self, max_failures: int) -> None:
        """
        Args:
            max_failures: failures in a row, of any kind, after which the sequence is abandoned.
        """
        self._max_failures = max_failures
        self._notified = self._alone = False
        self.in_a_row = 0
        """Consecutive failures without progress."""
        self.total = 0
        """Total number of failures."""
        self.losses = 0
        """Consecutive losses of the instance that worked on it."""
        self.excluded: list[ReplicaId] = []
        """Instances that failed it; others are preferred."""

    def sent(self) -> None:
        """Note that the sequence is sent to an instance. Effects: progress is counted from this point."""
        self._notified = self._alone = False

    def sent_alone(self) -> None:
        """Note that the sequence runs alone on its instance, if it is on trial."""
        self._alone = self.on_trial

    def progress(self, *, decoding: bool) -> None:
        """Note that the instance delivered a new token.

        Args:
            decoding: by decoding, not as the only token of a finished prompt.
        """
        self._notified = True
        if decoding:
            self.in_a_row = self.losses = 0

    def avoid(self, replica: ReplicaId | None) -> None:
        """Prefer other instances in future. Effects: extends `excluded`."""
        if replica is not None and replica not in self.excluded:
            self.excluded.append(replica)

    def failed(self, replica: ReplicaId | None, *, again: bool = True) -> bool:
        """Count a failure.

        Args:
            again: False = part of a failure already counted: its host took down several instances.
        Returns: whether another attempt is left.
        """
        self.avoid(replica)
        self.total += 1
        self.in_a_row = 1 if self._notified else self.in_a_row + again
        return self.in_a_row < self._max_failures

    @property
    def notified(self) -> bool:
        """Whether its present instance has delivered tokens."""
        return self._notified

    @property
    def on_trial(self) -> bool:
        """Whether it may only be tried alone."""
        return self.losses >= TRIAL_LOSSES

    def lost(self) -> bool:
        """Count the loss of the sequence's instance.

        Returns: whether it was a trial instance. If not, call `failed` too, unless the sequence is on trial now: two
            instances that die together count as one failure of a request.
        """
        tried = self._alone and not self._notified
        self.losses = 0 if self._notified else self.losses + 1
        self.total += self.on_trial
        return tried

    def judged(self, replica: ReplicaId, *, alone: bool) -> tuple[FailKind, str] | None:
        """Judge the loss of a trial instance: `alone` means that no other instance died at the same time.

        Returns: how and why the sequence is abandoned; None = another attempt is left.
        """
        if alone:
            return FailKind.POISON, self.cause(replica)
        self.losses = TRIAL_LOSSES
        self.in_a_row += 1
        if self.in_a_row < self._max_failures:
            return None
        return FailKind.UNAVAILABLE, self.spent(f"{replica} was lost, and others with it")

    def spent(self, reason: str) -> str:
        """Reason for abandoning it after the last failure."""
        return f"{reason}; given up after {self.in_a_row} attempts"

    def cause(self, replica: ReplicaId) -> str:
        """Reason for abandoning it after the last loss."""
        return (
            f"{self.losses} instances in a row were lost before they produced a token of this request, "
            f"{replica} while running it alone; it is the likely cause and not retried"
        )
