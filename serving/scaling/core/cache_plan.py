"""Size of the KV-cache pool: it grows while evicted blocks would be used again, and shrinks after a long window.

It uses memory and no NPUs, so it does not compete with other pools. More memory pays if the pool is full, blocks are
evicted, and prompts hit cached blocks. A cache never empties by itself, so the pool shrinks when the remaining servers
could hold all blocks, or when the hit rate has been low for long.
"""

from dataclasses import dataclass, field

from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.idle import IdleClock
from serving.scaling.core.load_forecast import ShareAverage
from serving.scaling.core.totals import CacheGains, Recent, cache_gains
from serving.values.signals import CacheSignals

FULL = 0.85
"""Fill from which another server is considered: evictions follow soon."""
ROOMY = 0.7
"""Highest fill of the remaining servers after one is removed."""
WORTH_IT = 0.02
"""Hit rate below which memory is wasted on this traffic."""
HIT_S = 600.0
"""Time constant of the hit rate."""
EVICTED_S = 60.0
GROW_EVERY_S = 30.0
"""A new server must hold its share before the next is considered (the placement ramp takes as long)."""
PATIENCE = 5.0
"""Stabilization window in units of `hold_s`: long, because evicted blocks must be computed again."""

_WORTH = f"from {FULL:.0%} full, {WORTH_IT:.0%} hits and any eviction on it is worth"


@dataclass(slots=True)
class CachePlan:
    """Decides for the KV-cache pool.

    Args:
        hold_s: as in `[autoscaler]`.
    """

    hold_s: float
    _hits: ShareAverage = field(default_factory=lambda: ShareAverage(HIT_S))
    _evicted: Recent = field(default_factory=lambda: Recent(EVICTED_S))
    _before: CacheSignals | None = None
    _grew_at: float | None = None
    _useful_at: float | None = None
    """When all current servers were last needed."""

    def decide(self, now: float, seconds: float, cache: CacheSignals, idle: IdleClock) -> PoolTarget:
        """Target of the KV-cache pool from now on.

        Args:
            seconds: since the previous poll; 0 = this is the first.
            idle: already updated with the same poll.
        """
        if self._before is not None and seconds > 0:
            self._see(cache_gains(self._before, cache, seconds))
        self._before = cache
        target, kind, reason = self._wanted(now, cache, idle)
        allowed = target if kind is ScaleKind.HELD else min(cache.high, max(cache.low, target))
        if allowed != target:
            reason = f"{reason}; {target} wanted, {cache.low} to {cache.high} servers are allowed"
            target = allowed
        if kind is ScaleKind.STAY and target != cache.target:
            kind = ScaleKind.FIT
        elif target == cache.target and kind is not ScaleKind.HELD:
            kind = ScaleKind.STAY
        if target != cache.target:
            self._useful_at = now
            self._grew_at = now if target > cache.target else self._grew_at
        return PoolTarget("kvcache", cache.target, target, kind, reason)

    def _see(self, gains: CacheGains) -> None:
        self._hits.add(gains.hit_tokens, gains.looked_up_tokens, gains.seconds)
        self._evicted.add(gains.evicted_bytes, gains.seconds)

    def _wanted(self, now: float, cache: CacheSignals, idle: IdleClock) -> tuple[int, ScaleKind, str]:
        size = cache.target
        if cache.held_until > now:
            return size, ScaleKind.HELD, f"held for {cache.held_until - now:.0f} s more"
        if idle.over(now) and cache.low == 0:
            return 0, ScaleKind.ZERO, idle.words(now)
        if size == 0:
            return (1, ScaleKind.WAKE, idle.waits) if idle.somebody else (0, ScaleKind.STAY, idle.waits)
        hits = self._hits.value(0.0)
        fill = cache.bytes_used / cache.bytes_total if cache.bytes_total else 0.0
        what = f"{fill:.0%} full, {hits:.0%} hits, {self._evicted.total / 2**20:.0f} MiB evicted in the last minute"
        full = fill >= FULL and self._evicted.total > 0
        if full and hits >= WORTH_IT and self._may_grow(now, cache):
            return size + 1, ScaleKind.FORECAST, f"{what}: {_WORTH} a server more"
        rest = fill * cache.running / max(1, cache.running - 1)
        roomy, useless = self._evicted.total <= 0 and rest <= ROOMY, hits < WORTH_IT
        if self._useful_at is None or not (roomy or useless) or cache.starting or cache.draining:
            self._useful_at = now
        unneeded_s, patience_s = now - self._useful_at, PATIENCE * self.hold_s
        if unneeded_s >= patience_s > 0 and size > max(1, cache.low):
            less = (
                f"the others would be {rest:.0%} of {ROOMY:.0%} full" if roomy else f"{WORTH_IT:.0%} hits are worth it"
            )
            why = f"{what}: {less}, one server was not needed for {unneeded_s:.0f} of {patience_s:.0f} s"
            return size - 1, ScaleKind.FORECAST, why
        return size, ScaleKind.STAY, f"{what}: {_WORTH} more than {size}"

    def _may_grow(self, now: float, cache: CacheSignals) -> bool:
        settled = self._grew_at is None or now - self._grew_at >= GROW_EVERY_S
        return settled and cache.running >= cache.target and not cache.starting
