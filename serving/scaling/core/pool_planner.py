"""The autoscaler's memory of one engine pool, and its plan for that pool if there were NPUs for everything."""

import math
from collections import deque
from dataclasses import dataclass, field

from msgspec import Struct

from serving.scaling.core.decision import ScaleKind
from serving.scaling.core.demand import Demand, Outlook
from serving.scaling.core.scale_down_backoff import ScaleDownBackoff
from serving.values.signals import PoolSignals

# Down with patience: a pool shrinks only to what was enough all the time lately.


@dataclass(slots=True)
class StabilizationWindow:
    """Remembers what was needed for `hold_s`."""

    hold_s: float
    _since: float | None = None
    _needs: deque[tuple[float, int]] = field(default_factory=deque)
    """Falling needs, each higher than all later ones."""

    def add(self, now: float, need: int) -> None:
        """Add the number needed from now on."""
        if self._since is None:
            self._since = now
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self.hold_s:
            self._needs.popleft()

    @property
    def highest(self) -> int:
        """The most that was needed within `hold_s`; 0 before the first."""
        return self._needs[0][1] if self._needs else 0

    def over(self, now: float) -> bool:
        """Whether `hold_s` was seen at all: nobody knows what was before the first look."""
        return self._since is not None and now - self._since >= self.hold_s


# Utilisation target learnt from SLOs: missed ones lower it at once and are forgotten slowly; ones that are kept with
# room to spare raise it slowly.
#
# What an instance can take is an estimate with a margin, and a margin that nobody ever uses is hardware that stands
# idle.

TARGET_STEP = 0.95
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
        lower = max(self.aim * LEAST, min(load, self.utilisation) * TARGET_STEP)
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


# The autoscaler's memory of one engine pool, and its plan for that pool if there were NPUs for everything.

CALM_SIGMAS = 2.5
"""A pool shrinks only if it would still be large enough at a load so many standard deviations higher."""
MEMORIES = 3.0
"""A system fills up for this many times as long as work stays in it."""
STEP = 3
"""A pool shrinks by no more than one part of so many at a time, and shows how the rest does."""
PLENTY = 2
"""But at once to so many times what it needs: that many have nothing to show."""
TRIFLE = 12
"""It neither grows by plan nor shrinks by less than one part of so many: that would only be taken back."""
WARM_S = 10.0
"""Of history before the smooth load is believed; until then queues speak."""
EDGE = 1e-6
"""Rounding of a load that is exactly whole."""


class Wanted(Struct, frozen=True, gc=False):
    """A target before NPUs are shared out."""

    target: int
    kind: ScaleKind
    reason: str


@dataclass(slots=True)
class PoolPlanner:
    """Memory and plan of one engine pool.

    Args:
        aim: load of an instance that is aimed at; hold_s: as in `[autoscaler]`.
    """

    aim: float
    hold_s: float
    lesson: LoadTarget = field(init=False)
    changed_at: float | None = None
    """When its target last changed."""
    _asked_at: float = 0.0
    """When more instances came to be missing, because they were asked for or because some were lost."""
    _missing: int = 0
    _target: int | None = None
    _patience: StabilizationWindow = field(init=False)
    _regret: ScaleDownBackoff = field(default_factory=ScaleDownBackoff)
    _first_at: float | None = None

    def __post_init__(self) -> None:
        self.lesson = LoadTarget(self.aim)
        self._patience = StabilizationWindow(self.hold_s)

    def outlook(self, now: float, pool: PoolSignals, start_s: float) -> Outlook:
        """Serving instances over the coming time. Effects: notices that the target changed since the last tick, from
        whatever side.
        """
        self._first_at = now if self._first_at is None else self._first_at
        if self._target is not None and pool.target != self._target:
            self.changed_at = now
        self._target = pool.target
        coming = max(pool.starting, pool.target - pool.running, 0)
        if coming > self._missing:
            self._asked_at = now
        self._missing = coming
        # one that is late is expected to be late by as much again
        ready = min(start_s, abs(self._asked_at + start_s - now))
        return Outlook(start_s, pool.running, coming, ready)

    def settled(self, now: float, seconds: float) -> bool:
        """Whether the last change is so long ago."""
        return self.changed_at is None or now - self.changed_at >= seconds

    def wanted(self, now: float, pool: PoolSignals, demand: Demand) -> Wanted:
        """The target with NPUs for all, within the pool's bounds, at least 1.

        Effects: remembers what was needed.
        """
        if demand.load is None:
            wanted = self._by_urgency(now, pool, demand)
        else:
            wanted = self._by_load(now, pool, demand, demand.load)
        return _within(wanted, pool)

    def _by_urgency(self, now: float, pool: PoolSignals, demand: Demand) -> Wanted:
        urgent = math.ceil(demand.urgent - EDGE)
        self._patience.add(now, max(pool.target, urgent))
        if urgent > pool.target:
            return Wanted(urgent, ScaleKind.BURST, f"{demand.why_urgent} needs {urgent}")
        return Wanted(pool.target, ScaleKind.STAY, f"{demand.why}: {pool.target} stay")

    def _by_load(self, now: float, pool: PoolSignals, demand: Demand, load: float) -> Wanted:
        size = pool.target
        aim = self.lesson.utilisation
        plan = _instances(load, aim, demand.swing)
        surely = max(demand.sure, min(demand.steady, load))
        sure = _instances(surely, aim, demand.swing)
        high = max(load, demand.heading) + CALM_SIGMAS * demand.noise
        calm = _instances(max(high, demand.sure), aim, demand.swing)
        urgent = math.ceil(demand.urgent - EDGE)
        self._patience.add(now, max(calm, urgent))
        self._regret.see(now, load, demand.noise)
        what = f"{demand.why}: {_words(load, aim, demand.swing)}"
        trifle = max(1, size // TRIFLE)
        planned = max(plan, sure) if sure > size and self._warm(now) else size
        if urgent > size:
            self._regret.grew(now)
            more = f" needs {planned}" if planned > urgent else ""
            return Wanted(max(urgent, planned), ScaleKind.BURST, f"{demand.why_urgent} needs {urgent}; {what}{more}")
        if planned > size:
            self._regret.grew(now)
            if sure > plan:
                what = f"{what}, by what surely comes {_words(surely, aim, demand.swing)}"
            less = f", but no fewer than {trifle} are added" if planned < size + trifle else ""
            return Wanted(max(planned, size + trifle), ScaleKind.FORECAST, f"{what} needs {planned}{less}")
        enough, would_do = self._enough(now, pool, load, calm)
        needed = f"at most {self._patience.highest} needed"
        if size - enough >= trifle and self._patient(now, demand.memory_s):
            self._regret.shrank(now, enough, load, demand.noise)
            return Wanted(enough, ScaleKind.FORECAST, f"{what}; {would_do}")
        return Wanted(size, ScaleKind.STAY, f"{what} needs {plan}: {size} stay, {needed} within {self.hold_s:.0f} s")

    def _enough(self, now: float, pool: PoolSignals, load: float, calm: int) -> tuple[int, str]:
        """The size that the pool may shrink to, and the bound that decided it."""
        size, needed = pool.target, max(1, self._patience.highest)
        part, plenty = max(1, size // STEP), PLENTY * max(1, calm)
        small = self._regret.least(now, load)
        at_a_time = f"no more than {part} of {size} leave at a time"
        if plenty < size - part:
            at_a_time = f"twice the {max(1, calm)} that are needed now stay"
        limit = self._regret.limit(load)
        bounds = (
            (needed, ""),
            (max(1, pool.low), f", {pool.low} to {pool.high} are allowed"),
            (small, f", but fewer than {small} were too small at a load of {limit:.2f} or more before"),
            (min(size - part, plenty), f", but {at_a_time}"),
        )
        enough, why = max(bounds, key=lambda bound: bound[0])
        return enough, f"{needed} would have done for {self.hold_s:.0f} s{why}"

    def _patient(self, now: float, memory_s: float) -> bool:
        """Whether it may shrink: steps down are few and large rather than many and small."""
        rested = self.changed_at is None or now - self.changed_at >= self.hold_s / 2
        return rested and self._patience.over(now - MEMORIES * memory_s)

    def _warm(self, now: float) -> bool:
        return self._first_at is not None and now - self._first_at >= WARM_S


def _instances(load: float, aim: float, swing: float) -> int:
    """Instances that keep to the aim in the mean, and take what comes in short times."""
    return math.ceil(max(load / aim, load + swing) - EDGE)


def _words(load: float, aim: float, swing: float) -> str:
    """The deciding term in `_instances`, in words: the mean at the aim, or what short times bring beside it."""
    if load + swing > load / aim:
        return f"load {load:.2f} and {swing:.2f} more in short times"
    return f"load {load:.2f} at {aim:.0%}"


def _within(wanted: Wanted, pool: PoolSignals) -> Wanted:
    """The same within the pool's bounds; at least 1, because zero is not for the load to decide."""
    target = min(pool.high, max(pool.low, 1, wanted.target))
    kind, reason = wanted.kind, wanted.reason
    if target != wanted.target:
        kind = ScaleKind.FIT if kind is ScaleKind.STAY else kind
        reason = f"{reason}; {pool.low} to {pool.high} are allowed"
    return Wanted(target, ScaleKind.STAY if target == pool.target else kind, reason)
