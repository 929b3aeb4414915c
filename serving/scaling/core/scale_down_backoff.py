"""Backoff after a scale-down that had to be reverted: the pool does not try that size again at the same load.

Sequences stay longer if fewer instances decode them, and queues exceed what the mean of the traffic suggests, so a pool
may alternate between too large at n and too small at n - 1. After a reverted step the pool shrinks again only when the
load is clearly lower than at that step.
"""

import math
from dataclasses import dataclass, field

BACKOFF_S = 3600.0
"""A step down that is reverted within this time was wrong, unless traffic has grown since."""
TRIAL_S = 180.0
"""Time after which the smooth load has followed the traffic, and shows whether it has grown."""
GROWN = 1.15
"""A load higher by this factor is due to traffic and not to the step: fewer instances raise the load by no more than
about a tenth while they meet the TPOT SLO."""
SIGMAS = 3.0
"""Standard deviations by which the load must be higher in addition."""
CLEARLY = 0.1
"""Part by which the load must be lower than at the reverted step; at most the load of three instances."""
NEARLY = 1.25
"""Factor up to which sizes near one that was too small are judged by the same load per instance."""
FORGET_S = 7200.0
"""A size that was too small may be tried again after this time: at most one failed attempt in two hours."""


@dataclass(slots=True)
class _Step:
    """A step down and its outcome."""

    at: float
    size: int
    load: float
    grew_at: float | None = None
    looks: int = 0
    total: float = 0.0
    """Sum of the loads observed after the pool grew again."""


@dataclass(slots=True)
class ScaleDownBackoff:
    """Backoff of one pool; loads are those of the whole pool, in instances."""

    _step: _Step | None = None
    """The last step, while it may still prove wrong."""
    _limits: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By size: the load from which it is too small, and when that was learnt."""

    def shrank(self, now: float, size: int, load: float, noise: float = 0.0) -> None:
        """The pool shrinks to `size`; the previous step is judged by the loads observed so far."""
        self._judge(now, noise)
        self._step = _Step(now, size, load)

    def grew(self, now: float) -> None:
        """The pool grows again; a step down within the last `BACKOFF_S` is on trial from now on."""
        step = self._step
        if step is None or step.grew_at is not None:
            return
        if now - step.at > BACKOFF_S:
            self._step = None
        else:
            step.grew_at = now

    def see(self, now: float, load: float, noise: float) -> None:
        """Add the load of a poll; after `TRIAL_S` the step on trial is judged.

        Args:
            noise: standard deviation of the load.
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
        """Size below which the pool has proved too small at this load; 0 = none known. Old entries are dropped."""
        self._limits = {n: known for n, known in self._limits.items() if now - known[1] < FORGET_S}
        return max((_too_small(size, limit, load) for size, (limit, _) in self._limits.items()), default=0)

    def limit(self, load: float) -> float:
        """The load from which the size that determines `least` has proved too small; 0 = none known."""
        known = [(_too_small(size, limit, load), limit) for size, (limit, _) in self._limits.items()]
        return max(known, default=(0, 0.0))[1]


def _too_small(size: int, limit: float, load: float) -> int:
    """The smallest size to allow after `size` was too small for `limit`; slightly larger sizes are excluded, too."""
    if load < limit or limit <= 0.0:
        return 0
    return max(size + 1, min(math.floor(load * size / limit) + 1, math.floor(size * NEARLY)))
