"""A clock that stands still until a test moves it."""

from dataclasses import dataclass

from hardware.units import Seconds


@dataclass
class ManualClock:
    """A clock that shows what a test put on it."""

    seconds: float = 0.0

    def now(self) -> Seconds:
        """See `hardware.clock.Clock`."""
        return Seconds(self.seconds)
