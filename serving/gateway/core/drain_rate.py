"""Rate at which a gateway's queue drains.

Measured by the starts while requests wait: waiting requests will see that rate, whatever limits it. Until a queue has
existed for long enough, Little's law is used instead: number of seats, and time for which each is occupied.
"""

from dataclasses import dataclass

HALF_LIFE_S = 20.0
"""Time of waiting queues after which a start counts half."""
ENOUGH_STARTS = 5.0
"""Starts from which a rate counts as known."""
_RESIDENCE_SHARE = 0.1
"""Weight of the latest sequence in the mean time that a seat is occupied."""


@dataclass(slots=True)
class DrainRate:
    """Starts per second from a queue that never runs empty."""

    seats: int
    """Sequences that may run concurrently."""
    starts: float = 0.0
    """Decayed sum, like the next two."""
    tokens: float = 0.0
    seconds: float = 0.0
    residence_s: float = 0.0
    """Mean time that a seat is occupied; 0 = unknown."""
    seats_per_start: float = 1.0
    tokens_per_start: float = 0.0

    def waited(self, seconds: float) -> None:
        """Note a wait without a start. Effects: earlier starts count less."""
        keep = 0.5 ** (seconds / HALF_LIFE_S)
        self.starts *= keep
        self.tokens *= keep
        self.seconds = self.seconds * keep + seconds

    def started(self, sequences: int, tokens: int, *, queued: bool) -> None:
        """Note a request's start. `queued`: it had to wait."""
        self.seats_per_start += _RESIDENCE_SHARE * (sequences - self.seats_per_start)
        self.tokens_per_start += (_RESIDENCE_SHARE if self.tokens_per_start else 1.0) * (tokens - self.tokens_per_start)
        if queued:
            self.starts += 1
            self.tokens += tokens

    def finished(self, residence_s: float) -> None:
        """Note that a seat was occupied for this time."""
        share = _RESIDENCE_SHARE if self.residence_s else 1.0
        self.residence_s += share * (residence_s - self.residence_s)

    @property
    def measured(self) -> bool:
        """Whether the rates were measured on a queue."""
        return self.starts >= ENOUGH_STARTS and self.seconds > 0

    @property
    def requests_per_s(self) -> float:
        """Requests that start per second; 0 = unknown."""
        if self.measured:
            return self.starts / self.seconds
        return self.seats / self.residence_s / self.seats_per_start if self.residence_s > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens started per second; 0 = unknown."""
        return self.tokens / self.seconds if self.measured else self.requests_per_s * self.tokens_per_start
