"""The autoscaler's memory of one engine pool, and its plan for that pool if there were NPUs for everything."""

import math
from collections import deque
from dataclasses import dataclass, field

from msgspec import Struct

from serving.scaling.core.decision import ScaleKind
from serving.scaling.core.demand import Demand, Outlook
from serving.scaling.core.scale_down_backoff import ScaleDownBackoff
from serving.values.signals import PoolSignals

# Stabilization window: a pool shrinks only to the largest size needed within the window.


@dataclass(slots=True)
class StabilizationWindow:
    """The sizes needed within the last `hold_s` seconds."""

    hold_s: float
    _since: float | None = None
    _needs: deque[tuple[float, int]] = field(default_factory=deque)
    """Time and need, decreasing: each is higher than all later ones."""

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
        """The largest size needed within `hold_s`; 0 before the first."""
        return self._needs[0][1] if self._needs else 0

    def over(self, now: float) -> bool:
        """Whether the first need was added at least `hold_s` ago, so that the window is complete."""
        return self._since is not None and now - self._since >= self.hold_s


# Utilization target learnt from SLOs: a violation lowers it at once and is forgotten slowly; SLOs met with slack raise
# it slowly.
#
# The capacity of an instance is an estimate with a margin, and a margin that is never used is idle hardware.

TARGET_STEP = 0.95
"""After an SLO violation the pool stays below this part of the load at which it occurred."""
LEAST = 0.6
"""Part of the configured target load below which SLO violations are not caused by a lack of instances. Responses of a
few tokens, for example, miss a strict time per token at any load, because it includes their handoff."""
FORGET_S = 1800.0
"""Time constant of forgetting: unlearning costs at most one change of the target in half an hour."""
RISE_PER_S = 0.1 / 3600
"""Rise of the target while no SLO is missed, as part of the configured target: a tenth in an hour."""
FALL = 3.0
"""The target falls at most this many times as fast as it rises; `learn` handles worse cases."""
MOST = 1.3
"""Upper limit as a multiple of the configured target: beyond it the capacity estimate itself must be wrong."""
NEAR = 0.8
"""Part of the target load below which a met SLO is no evidence about the target."""


@dataclass(slots=True)
class LoadTarget:
    """Target load of an instance of one pool.

    Args:
        aim: target as configured.
    """

    aim: float
    _more: float = 0.0
    """Increase of the target by met SLOs."""
    _missing: float = 0.0
    """Current decrease of the target by violations."""

    @property
    def utilisation(self) -> float:
        """Utilisation to plan with."""
        return self.aim + self._more - self._missing

    def new(self, load: float) -> bool:
        """Whether SLO violations at this load of an instance are new information.

        Above the target load the plan requests more instances anyway; far below it, more instances would not help.
        """
        return self.aim * LEAST < load <= self.utilisation

    def learn(self, load: float) -> None:
        """Lower the target after SLO violations at this load of an instance, to no less than `LEAST` x configured."""
        lower = max(self.aim * LEAST, min(load, self.utilisation) * TARGET_STEP)
        self._missing = max(self._missing, self.aim + self._more - lower)

    def kept(self, load: float, missed: float, seconds: float) -> None:
        """Raise the target if the pool ran at this load with fewer SLO violations than allowed; lower it with more.

        Args:
            missed: recent violations relative to the allowed number: 1 = exactly as many.
            seconds: time that the pool ran at this load.
        """
        if load < NEAR * self.utilisation:
            return
        change = self.aim * RISE_PER_S * seconds * max(-FALL, 1.0 - missed)
        self._more = min(max(0.0, self._more + change), self.aim * (MOST - 1.0))

    def forget(self, seconds: float) -> None:
        """Decay the decrease over `seconds` without violations."""
        self._missing *= math.exp(-seconds / FORGET_S)


# Planner of one engine pool, as if NPUs were unlimited.

CALM_SIGMAS = 2.5
"""A pool shrinks only if it would be large enough at a load higher by this many standard deviations."""
MEMORIES = 3.0
"""Time until a system is in steady state, in residence times of its work."""
STEP = 3
"""A pool shrinks by at most one part in this many at a time, so that the effect can be observed."""
PLENTY = 2
"""A pool may shrink at once to this many times its need, whatever `STEP` allows."""
TRIFLE = 12
"""Smallest planned change, as one part in this many: a smaller one would soon be reversed."""
WARM_S = 10.0
"""History needed before the smooth load is used [s]; until then only queues count."""
EDGE = 1e-6
"""Tolerance for the rounding of whole loads."""


class Wanted(Struct, frozen=True, gc=False):
    """A target before the NPUs are shared out."""

    target: int
    kind: ScaleKind
    reason: str


@dataclass(slots=True)
class PoolPlanner:
    """History and plan of one engine pool.

    Args:
        aim: target load of an instance.
        hold_s: as in `[autoscaler]`.
    """

    aim: float
    hold_s: float
    load_target: LoadTarget = field(init=False)
    changed_at: float | None = None
    """When its target last changed."""
    _asked_at: float = 0.0
    """When the number of missing instances last rose, by a larger target or a loss."""
    _missing: int = 0
    _target: int | None = None
    _patience: StabilizationWindow = field(init=False)
    _backoff: ScaleDownBackoff = field(default_factory=ScaleDownBackoff)
    _first_at: float | None = None

    def __post_init__(self) -> None:
        self.load_target = LoadTarget(self.aim)
        self._patience = StabilizationWindow(self.hold_s)

    def outlook(self, now: float, pool: PoolSignals, start_s: float) -> Outlook:
        """Serving and starting instances of the pool. Records a change of the target since the last poll."""
        self._first_at = now if self._first_at is None else self._first_at
        if self._target is not None and pool.target != self._target:
            self.changed_at = now
        self._target = pool.target
        coming = max(pool.starting, pool.target - pool.running, 0)
        if coming > self._missing:
            self._asked_at = now
        self._missing = coming
        # an overdue start is expected to take as long again as it is overdue
        ready = min(start_s, abs(self._asked_at + start_s - now))
        return Outlook(start_s, pool.running, coming, ready)

    def settled(self, now: float, seconds: float) -> bool:
        """Whether the last change of the target is at least `seconds` ago."""
        return self.changed_at is None or now - self.changed_at >= seconds

    def wanted(self, now: float, pool: PoolSignals, demand: Demand) -> Wanted:
        """The target with unlimited NPUs, within the pool's bounds, at least 1; records the need."""
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
        aim = self.load_target.utilisation
        plan = _instances(load, aim, demand.swing)
        surely = max(demand.sure, min(demand.steady, load))
        sure = _instances(surely, aim, demand.swing)
        high = max(load, demand.heading) + CALM_SIGMAS * demand.noise
        calm = _instances(max(high, demand.sure), aim, demand.swing)
        urgent = math.ceil(demand.urgent - EDGE)
        self._patience.add(now, max(calm, urgent))
        self._backoff.see(now, load, demand.noise)
        what = f"{demand.why}: {_words(load, aim, demand.swing)}"
        trifle = max(1, size // TRIFLE)
        planned = max(plan, sure) if sure > size and self._warm(now) else size
        if urgent > size:
            self._backoff.grew(now)
            more = f" needs {planned}" if planned > urgent else ""
            return Wanted(max(urgent, planned), ScaleKind.BURST, f"{demand.why_urgent} needs {urgent}; {what}{more}")
        if planned > size:
            self._backoff.grew(now)
            if sure > plan:
                what = f"{what}, by what surely comes {_words(surely, aim, demand.swing)}"
            less = f", but no fewer than {trifle} are added" if planned < size + trifle else ""
            return Wanted(max(planned, size + trifle), ScaleKind.FORECAST, f"{what} needs {planned}{less}")
        enough, would_do = self._enough(now, pool, load, calm)
        needed = f"at most {self._patience.highest} needed"
        if size - enough >= trifle and self._patient(now, demand.memory_s):
            self._backoff.shrank(now, enough, load, demand.noise)
            return Wanted(enough, ScaleKind.FORECAST, f"{what}; {would_do}")
        return Wanted(size, ScaleKind.STAY, f"{what} needs {plan}: {size} stay, {needed} within {self.hold_s:.0f} s")

    def _enough(self, now: float, pool: PoolSignals, load: float, calm: int) -> tuple[int, str]:
        """The size that the pool may shrink to, and the bound that decided it."""
        size, needed = pool.target, max(1, self._patience.highest)
        part, plenty = max(1, size // STEP), PLENTY * max(1, calm)
        small = self._backoff.least(now, load)
        at_a_time = f"no more than {part} of {size} leave at a time"
        if plenty < size - part:
            at_a_time = f"twice the {max(1, calm)} that are needed now stay"
        limit = self._backoff.limit(load)
        bounds = (
            (needed, ""),
            (max(1, pool.low), f", {pool.low} to {pool.high} are allowed"),
            (small, f", but fewer than {small} were too small at a load of {limit:.2f} or more before"),
            (min(size - part, plenty), f", but {at_a_time}"),
        )
        enough, why = max(bounds, key=lambda bound: bound[0])
        return enough, f"{needed} would have done for {self.hold_s:.0f} s{why}"

    def _patient(self, now: float, memory_s: float) -> bool:
        """Whether the pool may shrink now: steps down are few and large rather than many and small."""
        rested = self.changed_at is None or now - self.changed_at >= self.hold_s / 2
        return rested and self._patience.over(now - MEMORIES * memory_s)

    def _warm(self, now: float) -> bool:
        return self._first_at is not None and now - self._first_at >= WARM_S


def _instances(load: float, aim: float, swing: float) -> int:
    """Instances that keep the mean load at the target, and can absorb short-term peaks."""
    return math.ceil(max(load / aim, load + swing) - EDGE)


def _words(load: float, aim: float, swing: float) -> str:
    """The deciding term of `_instances` as text: the mean load at the target, or the load with short-term peaks."""
    if load + swing > load / aim:
        return f"load {load:.2f} and {swing:.2f} more in short times"
    return f"load {load:.2f} at {aim:.0%}"


def _within(wanted: Wanted, pool: PoolSignals) -> Wanted:
    """The target within the pool's bounds; at least 1, because the load does not decide about scaling to zero."""
    target = min(pool.high, max(pool.low, 1, wanted.target))
    kind, reason = wanted.kind, wanted.reason
    if target != wanted.target:
        kind = ScaleKind.FIT if kind is ScaleKind.STAY else kind
        reason = f"{reason}; {pool.low} to {pool.high} are allowed"
    return Wanted(target, ScaleKind.STAY if target == pool.target else kind, reason)
