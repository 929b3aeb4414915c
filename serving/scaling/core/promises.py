"""Whether promises are being broken: the share kept lately, and whether it is worse than chance would have it."""

import math
from dataclasses import dataclass, field

from serving.scaling.core.recent import Recent

WINDOW_S = 60.0
TREND_S = 600.0
"""Over so long it shows whether more or less is missed than may be."""
BUDGET_S = 3600.0
"""What may be missed is counted over so long: a bad minute in an hour that kept the promise is no reason to grow."""
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
    _trend_met: Recent = field(default_factory=lambda: Recent(TREND_S))
    _trend_missed: Recent = field(default_factory=lambda: Recent(TREND_S))
    _long_met: Recent = field(default_factory=lambda: Recent(BUDGET_S))
    _long_missed: Recent = field(default_factory=lambda: Recent(BUDGET_S))

    def add(self, met: int, missed: int, seconds: float) -> None:
        """Count the answers of the last `seconds`."""
        self._met.add(met, seconds)
        self._missed.add(missed, seconds)
        self._trend_met.add(met, seconds)
        self._trend_missed.add(missed, seconds)
        self._long_met.add(met, seconds)
        self._long_missed.add(missed, seconds)

    def clear(self) -> None:
        """Forget the last minute: what follows is to be judged by itself."""
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
    def trend_missed(self) -> float:
        """Broken in the last minutes; a change of the pool is part of it."""
        return self._trend_missed.total

    @property
    def trend_answers(self) -> float:
        """Judged in the last minutes."""
        return self._trend_met.total + self._trend_missed.total

    @property
    def broken(self) -> bool:
        """Whether more was missed than the goal allows: lately, by more than chance, and in the last hour."""
        allowed = (1.0 - self.goal) * self.answers
        lately = self.answers >= FEWEST and self._missed.total > allowed + SIGMAS * math.sqrt(allowed)
        return lately and self._long_missed.total > (1.0 - self.goal) * (self._long_met.total + self._long_missed.total)
