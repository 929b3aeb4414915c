"""Current slowdown of an instance's steps relative to the prediction: jitter, spikes, stragglers, degraded links."""

import math

from hardware.variation import StepVariation
from serving.config.simulation import SimulationConfig
from serving.ids import ReplicaId

JITTER_STEPS = 8
"""Decode iterations that share one factor when steps vary: the mean of this many draws."""


class Slowdown:
    """Slowdown factor of one instance, called with the number of a step."""

    __slots__ = ("_averaged", "_factors", "_product", "_variation")

    def __init__(self, config: SimulationConfig, seed: int, name: ReplicaId, *, averaged: bool) -> None:
        """
        Args:
            averaged: one factor covers `JITTER_STEPS` steps.
        """
        varies = config.jitter > 0.0 or config.spike_share > 0.0
        self._variation = (
            StepVariation(config.jitter, config.spike_share, config.spike_factor, seed, name) if varies else None
        )
        self._averaged = averaged
        self._factors: dict[str, float] = {}
        self._product = 1.0

    @property
    def varies(self) -> bool:
        """Whether two steps may have different factors."""
        return self._variation is not None

    def set(self, cause: str, factor: float) -> None:
        """Set the factor of one cause from now on; 1 = no slowdown. The factors of all causes multiply."""
        self._factors[cause] = factor
        self._product = math.prod(self._factors.values(), start=1.0)

    def __call__(self, step: int) -> float:
        variation = self._variation
        if variation is None:
            return self._product
        if not self._averaged:
            return self._product * variation.factor(step)
        return self._product * sum(variation.factor(step + n) for n in range(JITTER_STEPS)) / JITTER_STEPS
