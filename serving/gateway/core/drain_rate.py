"""How fast a gateway's queue is worked off.

Measured by what starts while something waits: that is the rate that those who wait will see, whatever limits it. Before
a queue has been there long enough, Little's law stands in: so many seats, so long each is taken.
"""

from dataclasses import dataclass

HALF_LIFE_S = 20.0
"""After so long of waiting queues a start counts half."""
ENOUGH_STARTS = 5.0
"""From how many starts on a rate is taken for known."""
_RESIDENCE_SHARE = 0.1
"""Weight of the newest sequence in the mean time that a seat is taken."""


@dataclass(slots=True)
class DrainRate:
    """Starts per second from a queue that never ran dry."""

    seats: int
    """Sequences that may run at once."""
    starts: float = 0.0
    """Decayed sum, like the two below."""
    tokens: float = 0.0
    seconds: float = 0.0
    residence_s: float = 0.0
    """Mean time that a seat is taken; 0 = not known."""
    seats_per_start: float = 1.0
    tokens_per_start: float = 0.0

    def waited(self, seconds: float) -> None:
        """Note a wait of so many seconds without a start. Effects: older starts count less."""
        keep = 0.5 ** (seconds / HALF_LIFE_S)
        self.starts *= keep
        self.tokens *= keep
        self.seconds = self.seconds * keep + seconds

    def started(self, sequences: int, tokens: int, *, queued: bool) -> None:
        """A request started. `queued`: it had to wait."""
        self.seats_per_start += _RESIDENCE_SHARE * (sequences - self.seats_per_start)
        self.tokens_per_start += (_RESIDENCE_SHARE if self.tokens_per_start else 1.0) * (tokens - self.tokens_per_start)
        if queued:
            self.starts += 1
            self.tokens += tokens

    def finished(self, residence_s: float) -> None:
        """A seat was taken for so long."""
        share = _RESIDENCE_SHARE if self.residence_s else 1.0
        self.residence_s += share * (residence_s - self.residence_s)

    @property
    def measured(self) -> bool:
        """Whether the rates are those of a queue."""
        return self.starts >= ENOUGH_STARTS and self.seconds > 0

    @property
    def requests_per_s(self) -> float:
        """Requests that start per second; 0 = not known."""
        if self.measured:
            return self.starts / self.seconds
        return self.seats / self.residence_s / self.seats_per_start if self.residence_s > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens started per second; 0 = not known."""
        return self.tokens / self.seconds if self.measured else self.requests_per_s * self.tokens_per_start
