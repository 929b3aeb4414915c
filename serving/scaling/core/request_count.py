"""Baseline policy: replicas by the number of in-flight requests, with delays, as in Ray Serve's own autoscaler.

It ignores roles, tokens and SLOs, and takes the in-flight requests as the demand: a pool that is too slow appears busy,
one that waits for another pool appears idle. It exists for comparison.

Source: Ray Serve 2.60, `autoscaling_policy.py`: ceil(requests / target), 30 s of delay up, 600 s down.
"""

import math
from dataclasses import dataclass, field

from serving.scaling.core.budget import CapacityWatch, NpuRequest, share_out
from serving.scaling.core.decision import PoolTarget, ScaleKind, ScalingDecision
from serving.scaling.core.idle import IdleClock, under_way
from serving.values.signals import PoolSignals, ScalingSignals

UP_DELAY_S = 30.0
DOWN_DELAY_S = 600.0


@dataclass(slots=True)
class _Delay:
    """Time since which a pool's load has called for growing or shrinking."""

    direction: int = 0
    since: float = 0.0

    def passed(self, now: float, direction: int) -> float:
        """How long the direction has been the same [s]; a change of direction restarts the count."""
        if direction != self.direction:
            self.direction, self.since = direction, now
        return now - self.since


@dataclass(slots=True)
class RequestCountScaler:
    """The `Scaler` of `policy = "requests"`.

    Args:
        requests_per_instance: target number of in-flight requests per instance.
        idle_to_zero_s, npu_budget: as in `[autoscaler]`.
        up_delay_s, down_delay_s: how long the load must call for growing or shrinking before the target changes.
    """

    requests_per_instance: float
    idle_to_zero_s: float
    npu_budget: int = 0
    up_delay_s: float = UP_DELAY_S
    down_delay_s: float = DOWN_DELAY_S
    _delays: dict[str, _Delay] = field(default_factory=dict)
    _idle: IdleClock = field(init=False)
    _room: CapacityWatch = field(init=False)

    def __post_init__(self) -> None:
        self._idle = IdleClock(self.idle_to_zero_s)
        self._room = CapacityWatch(self.npu_budget)

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Targets from now on; records since when each pool's load has called for another size."""
        self._idle.see(signals)
        room = self._room.see(signals)
        wanted = [self._wanted(signals, place) for place in range(len(signals.pools))]
        npu_requests = [
            NpuRequest(
                pool.target,
                want.target,
                min(pool.low, want.target),
                min(pool.target, want.target),
                pool.npus_per_instance,
            )
            for pool, want in zip(signals.pools, wanted, strict=True)
            if want.kind is not ScaleKind.HELD
        ]
        held = sum(pool.target * pool.npus_per_instance for pool in signals.pools if pool.held_until > signals.now)
        shares = iter(share_out(npu_requests, max(0, room.npus - held)))
        fits = room.words(signals, self.npu_budget)
        targets = [want if want.kind is ScaleKind.HELD else _fitted(want, next(shares), fits) for want in wanted]
        if signals.cache is not None:
            size = signals.cache.target
            why = f"{size} servers stay: requests do not say how much to cache"
            targets.append(PoolTarget("kvcache", size, size, ScaleKind.STAY, why))
        return ScalingDecision(signals.now, tuple(targets))

    def _wanted(self, signals: ScalingSignals, place: int) -> PoolTarget:
        pool, now = signals.pools[place], signals.now
        if pool.held_until > now:
            return PoolTarget(
                pool.pool, pool.target, pool.target, ScaleKind.HELD, f"held for {pool.held_until - now:.0f} s more"
            )
        if self._idle.over(now) and pool.low == 0:
            kind = ScaleKind.ZERO if pool.target else ScaleKind.STAY
            return PoolTarget(pool.pool, pool.target, 0, kind, self._idle.words(now))
        waiting = signals.traffic.queued if place == 0 else 0
        requests = pool.sequences + waiting
        need = math.ceil(requests / self.requests_per_instance - 1e-9)
        want = _within(need, pool)
        why = f"{requests} requests at {self.requests_per_instance:g} an instance need {need}"
        if want != need:
            why += f", {pool.low} to {pool.high} are allowed"
        if pool.target == 0:
            waiting = under_way(signals)
            size = want if waiting or pool.low else 0
            kind = ScaleKind.STAY if not size else ScaleKind.WAKE if waiting else ScaleKind.FIT
            return PoolTarget(pool.pool, 0, size, kind, f"{waiting} requests wait; {why}")
        direction = (want > pool.target) - (want < pool.target)
        passed = self._delays.setdefault(pool.pool, _Delay()).passed(now, direction)
        delay = self.up_delay_s if direction > 0 else self.down_delay_s
        if direction:
            why += f", {want} wanted for {passed:.0f} of {delay:.0f} s"
        if passed < delay:
            want = pool.target
        if (allowed := _within(want, pool)) != want:
            want, why = allowed, f"{why}; {pool.low} to {pool.high} are allowed"
        return PoolTarget(
            pool.pool, pool.target, want, ScaleKind.FORECAST if want != pool.target else ScaleKind.STAY, why
        )


def _within(want: int, pool: PoolSignals) -> int:
    return min(pool.high, max(want, pool.low, min(1, pool.high)))


def _fitted(want: PoolTarget, share: int, fits: str) -> PoolTarget:
    if share == want.target:
        return want
    kind = ScaleKind.STAY if share == want.before else ScaleKind.FIT
    return PoolTarget(want.pool, want.before, share, kind, f"{want.reason}: {want.target} wanted, {share} fit: {fits}")
