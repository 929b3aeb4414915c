"""What broken promises teach: the load of an instance beyond which they break here, forgotten slowly."""

import math
from dataclasses import dataclass

STEP = 0.95
"""From then on the pool stays below this part of the load at which a promise broke."""
LEAST = 0.6
"""Of the load that was aimed at: if promises break even below that, instances are not what is missing. Answers of a few
tokens, for one, miss a strict time per token at any load: their handoff counts in it."""
FORGET_S = 1800.0
"""Time constant of forgetting: a lesson costs at most one change to unlearn in half an hour."""


@dataclass(slots=True)
class Lesson:
    """Load of an instance that one pool aims at.

    Args:
        aim: as configured.
    """

    aim: float
    _missing: float = 0.0
    """By how much the aim is lower now."""

    @property
    def utilisation(self) -> float:
        """To plan with."""
        return self.aim - self._missing

    def new(self, load: float) -> bool:
        """Whether broken promises at this load of an instance say something that the plan does not know.

        Beyond the load that is aimed at the plan asks for more anyway; far below it, more is not what is missing.
        """
        return self.aim * LEAST < load <= self.utilisation

    def learn(self, load: float) -> None:
        """Promises broke at this load of an instance.

        Effects: aims lower, but never below `LEAST` of what was configured.
        """
        lower = max(self.aim * LEAST, min(load, self.utilisation) * STEP)
        self._missing = max(self._missing, self.aim - lower)

    def forget(self, seconds: float) -> None:
        """Time passed without broken promises."""
        self._missing *= math.exp(-seconds / FORGET_S)
