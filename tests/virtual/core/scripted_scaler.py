"""A scaler with scripted decisions, which records its inputs."""

from collections.abc import Sequence

from serving.scaling.core.decision import PoolTarget, ScaleKind, ScalingDecision
from serving.values.signals import ScalingSignals


class ScriptedScaler:
    """Sets targets at times.

    Args:
        script: (not before, pool, target), in order of time.
    Attributes:
        seen: every tick.
    """

    def __init__(self, script: Sequence[tuple[float, str, int]] = ()) -> None:
        self.seen: list[ScalingSignals] = []
        self._script = list(script)

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Decide; see `Scaler`."""
        self.seen.append(signals)
        targets = {one.pool: one.target for one in signals.pools}
        if signals.cache is not None:
            targets["kvcache"] = signals.cache.target
        before = dict(targets)
        while self._script and self._script[0][0] <= signals.now:
            _, pool, target = self._script.pop(0)
            targets[pool] = target
        return ScalingDecision(
            signals.now,
            tuple(
                PoolTarget(pool, before[pool], target, ScaleKind.FORECAST, "as written")
                for pool, target in targets.items()
            ),
        )
