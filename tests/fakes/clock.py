"""A clock that only a test moves."""

from dataclasses import dataclass

from hardware.units import Seconds


@dataclass
class ManualClock:
    """A clock that shows a set time."""

    seconds: float = 0.0

    def now(self) -> Seconds:
        """Current time; see `hardware.clock.Clock`."""
        return Seconds(self.seconds)
