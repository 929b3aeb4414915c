"""Utilisation target learnt from SLOs: missed ones lower it at once and are forgotten slowly; ones that are kept with
room to spare raise it slowly.

What an instance can take is an estimate with a margin, and a margin that nobody ever uses is hardware that stands idle.
"""

import math
from dataclasses import dataclass

STEP = 0.95
"""From then on the pool stays below this part of the load at which a promise broke."""
LEAST = 0.6
"""Of the load that was aimed at: if promises break even below that, instances are not what is missing. Answers of a few
tokens, for one, miss a strict time per token at any load: their handoff counts in it."""
FORGET_S = 1800.0
"""Time constant of forgetting: a lesson costs at most one change to unlearn in half an hour."""
RISE_PER_S = 0.1 / 3600
"""By how much of the configured aim it rises while nothing is missed: a tenth in an hour."""
FALL = 3.0
"""It falls by no more than this many times as fast; for worse there is `learn`."""
MOST = 1.3
"""Times the configured aim: beyond it the estimate is wrong, and to be mended."""
NEAR = 0.8
"""Of the load that is aimed at: promises that are kept at less say nothing about it."""


@dataclass(slots=True)
class LoadTarget:
    """Load of an instance that one pool aims at.

    Args:
        aim: as configured.
    """

    aim: float
    _more: float = 0.0
    """By how much promises that were kept have raised the aim."""
    _missing: float = 0.0
    """By how much the aim is lower now."""

    @property
    def utilisation(self) -> float:
        """Utilisation to plan with."""
        return self.aim + self._more - self._missing

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
        self._missing = max(self._missing, self.aim + self._more - lower)

    def kept(self, load: float, missed: float, seconds: float) -> None:
        """A pool worked at this load of an instance for so long.

        Args:
            missed: promises broken lately, of those that may be: 1 = just as many.
        Effects: aims higher while fewer are broken than may be, and lower again while more are.
        """
        if load < NEAR * self.utilisation:
            return
        change = self.aim * RISE_PER_S * seconds * max(-FALL, 1.0 - missed)
        self._more = min(max(0.0, self._more + change), self.aim * (MOST - 1.0))

    def forget(self, seconds: float) -> None:
        """Time passed without broken promises."""
        self._missing *= math.exp(-seconds / FORGET_S)
