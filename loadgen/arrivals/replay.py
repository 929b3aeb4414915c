"""Arrivals as they were recorded, at their own pace or another, whole or cut out."""

import math
from dataclasses import dataclass

from loadgen.errors import UsageError


@dataclass(frozen=True)
class ReplayedArrivals:
    """How recorded times become send times: t -> (t - from_s) / rate_scale for t in [from_s, to_s).

    With the defaults a recorded time is its own send time, bit for bit.

    Attributes:
        rate_scale: 2 = twice as fast as recorded.
        from_s, to_s: part of the recording that is replayed [s from its start].
    """

    rate_scale: float = 1.0
    from_s: float = 0.0
    to_s: float = math.inf

    def __post_init__(self) -> None:
        """Raises: UsageError for a scale that is not above 0, or an empty or negative window."""
        if not 0 < self.rate_scale < math.inf:
            raise UsageError(f"the rate scale of a replay must be above 0, not {self.rate_scale}")
        if not 0 <= self.from_s < self.to_s:
            raise UsageError(f"a replay from {self.from_s} s to {self.to_s} s of the recording contains no requests")

    def due_s(self, recorded_s: float) -> float | None:
        """Send time of a recorded time; None outside the window."""
        if not self.from_s <= recorded_s < self.to_s:
            return None
        return (recorded_s - self.from_s) / self.rate_scale

    def is_over(self, recorded_s: float) -> bool:
        """Whether no request at or after this time can be inside the window."""
        return recorded_s >= self.to_s
