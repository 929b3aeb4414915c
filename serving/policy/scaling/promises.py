"""Whether promises are being broken: the share kept lately, and whether it is worse than chance would have it."""

import math
from dataclasses import dataclass, field

from serving.policy.scaling.recent import Recent

WINDOW_S = 60.0
FEWEST = 10
"""Answers below which nothing is concluded."""
SIGMAS = 2.0


@dataclass(slots=True)
class PromiseWindow:
    """One promise (time to first token, or per token) over the last minute.

    Args:
        goal: share of requests that must be served as promised.
    """

    goal: float
    _met: Recent = field(default_factory=lambda: Recent(WINDOW_S))
    _missed: Recent = field(default_factory=lambda: Recent(WINDOW_S))

    def add(self, met: int, missed: int, seconds: float) -> None:
        """Count the answers of the last `seconds`."""
        self._met.add(met, seconds)
        self._missed.add(missed, seconds)

    def clear(self) -> None:
        """Forget: what follows is to be judged by itself."""
        self._met.clear()
        self._missed.clear()

    @property
    def answers(self) -> int:
        """Judged in the window."""
        return round(self._met.total + self._missed.total)

    @property
    def share(self) -> float | None:
        """Kept; None if there was nothing to keep."""
        return self._met.total / self.answers if self.answers else None

    @property
    def broken(self) -> bool:
        """Whether more was missed than the goal allows, by more than chance."""
        allowed = (1.0 - self.goal) * self.answers
        return self.answers >= FEWEST and self._missed.total > allowed + SIGMAS * math.sqrt(allowed)
