"""Sizes that turned out too small: a pool that had to take a step down back does not try it again at the same load.

Sequences stay longer where fewer instances decode them, and queues are longer than the mean of the traffic says, so
that a pool can look too large at n and too small at n - 1, for ever. Whoever regrets a step remembers the load that
invited it, and wants to see clearly less before the next try.
"""

import math
from dataclasses import dataclass, field

REGRET_S = 7200.0
"""A step down that is taken back within this time was wrong, unless traffic has grown meanwhile."""
GROWN = 1.6
"""A load that is this many times what it was is more traffic, not the step: fewer instances alone raise it by half."""
CLEARLY = 0.1
"""By this part the load must be lower than the one that invited the step; by three instances' worth at most."""
NEARLY = 1.25
"""Times a size that was too small: the same load of an instance is not tried there either."""
FORGET_S = 4 * 3600.0
"""What was too small may be tried again after this long: at most one vain try in hours."""


@dataclass(slots=True)
class Regret:
    """Of one pool; loads are those of the whole pool, in instances."""

    _shrank_at: float | None = None
    _shrank_to: int = 0
    _shrank_load: float = 0.0
    _limits: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By size: load from which on it is too small, and when that was learnt."""

    def shrank(self, now: float, size: int, load: float) -> None:
        """The pool goes down to `size`."""
        self._shrank_at, self._shrank_to, self._shrank_load = now, size, load

    def grew(self, now: float, load: float) -> None:
        """The pool goes up again. Effects: remembers a step down that was wrong."""
        at, self._shrank_at = self._shrank_at, None
        if at is None or now - at > REGRET_S or load > GROWN * self._shrank_load:
            return
        known, _ = self._limits.get(self._shrank_to, (self._shrank_load, 0.0))
        lower = 1.0 - min(CLEARLY, 3.0 / self._shrank_to)
        self._limits[self._shrank_to] = (min(known, self._shrank_load) * lower, now)

    def least(self, now: float, load: float) -> int:
        """Size below which the pool has proved too small at this load; 0 = none has.

        Effects: forgets what was learnt long ago.
        """
        self._limits = {n: known for n, known in self._limits.items() if now - known[1] < FORGET_S}
        return max((_too_small(size, limit, load) for size, (limit, _) in self._limits.items()), default=0)


def _too_small(size: int, limit: float, load: float) -> int:
    """The least size after `size` was too small for `limit`; what is nearly as large was nearly as wrong."""
    if load < limit:
        return 0
    return max(size + 1, min(math.floor(load * size / limit) + 1, math.floor(size * NEARLY)))
