"""Sizes that turned out too small: a pool that had to take a step down back does not try it again at the same load.

Sequences stay longer where fewer instances decode them, and queues are longer than the mean of the traffic says, so
that a pool can look too large at n and too small at n - 1, for ever. Whoever regrets a step remembers the load that
invited it, and wants to see clearly less before the next try.
"""

import math
from dataclasses import dataclass, field

REGRET_S = 3600.0
"""A step down that is taken back within this time was wrong, unless traffic has grown meanwhile."""
TRIAL_S = 180.0
"""After so long the smooth load has caught up with traffic, and shows whether there was more of it."""
GROWN = 1.15
"""A load that is this many times what it was is more traffic, not the step: fewer instances, while they still keep the
promised time per token, raise it by no more than a tenth or so."""
SIGMAS = 3.0
"""Standard deviations by which a load must be higher besides."""
CLEARLY = 0.1
"""By this part the load must be lower than the one that invited the step; by three instances' worth at most."""
NEARLY = 1.25
"""Times a size that was too small: the same load of an instance is not tried there either."""
FORGET_S = 7200.0
"""What was too small may be tried again after this long: at most one vain try in two hours."""


@dataclass(slots=True)
class _Step:
    """A step down, and what came of it."""

    at: float
    size: int
    load: float
    grew_at: float | None = None
    looks: int = 0
    total: float = 0.0
    """Of the loads seen after the pool grew again."""


@dataclass(slots=True)
class ScaleDownBackoff:
    """ScaleDownBackoff of one pool; loads are those of the whole pool, in instances."""

    _step: _Step | None = None
    """The last one, as long as it may turn out to be wrong."""
    _limits: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By size: load from which on it is too small, and when that was learnt."""

    def shrank(self, now: float, size: int, load: float, noise: float = 0.0) -> None:
        """The pool goes down to `size`. Effects: what is known of the step before must do to judge it."""
        self._judge(now, noise)
        self._step = _Step(now, size, load)

    def grew(self, now: float) -> None:
        """The pool goes up again. Effects: the step down is on trial, if it was not long ago."""
        step = self._step
        if step is None or step.grew_at is not None:
            return
        if now - step.at > REGRET_S:
            self._step = None
        else:
            step.grew_at = now

    def see(self, now: float, load: float, noise: float) -> None:
        """Another look at the load.

        Args:
            noise: standard deviation of the load.
        Effects: remembers a step down that was wrong, as soon as it is clear that traffic has not grown.
        """
        step = self._step
        if step is None or step.grew_at is None:
            return
        step.looks += 1
        step.total += load
        if now - step.grew_at >= TRIAL_S:
            self._judge(now, noise)

    def _judge(self, now: float, noise: float) -> None:
        step, self._step = self._step, None
        if step is None or step.grew_at is None:
            return
        if step.total > (GROWN * step.load + SIGMAS * noise) * step.looks:
            return
        known, _ = self._limits.get(step.size, (step.load, 0.0))
        lower = 1.0 - min(CLEARLY, 3.0 / step.size)
        self._limits[step.size] = (min(known, step.load) * lower, now)

    def least(self, now: float, load: float) -> int:
        """Size below which the pool has proved too small at this load; 0 = none has.

        Effects: forgets what was learnt long ago.
        """
        self._limits = {n: known for n, known in self._limits.items() if now - known[1] < FORGET_S}
        return max((_too_small(size, limit, load) for size, (limit, _) in self._limits.items()), default=0)

    def limit(self, load: float) -> float:
        """The load from which on the size that `least` goes by has proved too small; 0 = none has."""
        known = [(_too_small(size, limit, load), limit) for size, (limit, _) in self._limits.items()]
        return max(known, default=(0, 0.0))[1]


def _too_small(size: int, limit: float, load: float) -> int:
    """The least size after `size` was too small for `limit`; what is nearly as large was nearly as wrong."""
    if load < limit or limit <= 0.0:
        return 0
    return max(size + 1, min(math.floor(load * size / limit) + 1, math.floor(size * NEARLY)))
