"""The rule that the SLO policy must beat: replicas follow the offered load at 75 %, and the queue."""

from dataclasses import dataclass, field
from math import ceil

from serving.scaling.core.decision import PoolTarget, ScaleKind, ScalingDecision
from serving.scaling.core.totals import Recent
from serving.values.signals import PoolSignals, ScalingSignals, Traffic

_LOAD = 0.75
"""Of an instance's measured rate, or of its sequences within the TPOT SLO."""
_QUEUE_S = 1.0
_WINDOW_S = 30.0
_HOLD_S = 60.0


@dataclass(slots=True)
class SimpleRule:
    """A `Scaler`: prompt tokens a second / 0.75 of the measured rate + queue / 1 s; down by one after a minute."""

    _tokens: Recent = field(default_factory=lambda: Recent(_WINDOW_S))
    _before: tuple[float, Traffic] | None = None
    _enough_since: dict[str, float] = field(default_factory=dict)

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """See `Scaler`."""
        now, traffic = signals.now, signals.traffic
        if self._before is not None:
            then, before = self._before
            self._tokens.add(traffic.arrived_tokens - before.arrived_tokens, now - then)
        self._before = now, traffic
        first, last = signals.pools[0], signals.pools[-1]
        prompts = self._tokens.rate / _LOAD + (first.queued_tokens + traffic.queued_tokens) / _QUEUE_S
        wanted = ((first, prompts, first.tokens_per_s), (last, last.sequences / _LOAD, last.max_sequences))
        return ScalingDecision(now, tuple(self._target(now, pool, load / able) for pool, load, able in wanted if able))

    def _target(self, now: float, pool: PoolSignals, load: float) -> PoolTarget:
        need = min(pool.high, max(pool.low, ceil(load - 1e-9)))
        if need >= pool.target:
            self._enough_since[pool.pool] = now
        elif now - self._enough_since.setdefault(pool.pool, now) < _HOLD_S:
            need = pool.target
        else:
            need = pool.target - 1
            self._enough_since[pool.pool] = now
        kind = ScaleKind.STAY if need == pool.target else ScaleKind.FORECAST
        return PoolTarget(pool.pool, pool.target, need, kind, f"load {load:.2f}")
