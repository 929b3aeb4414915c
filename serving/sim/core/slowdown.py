"""By how much an instance's steps are longer than predicted, now: jitter and spikes, stragglers, thinner links."""

from hardware.variation import StepVariation
from serving.config.simulation import SimulationConfig
from serving.ids import ReplicaId

JITTER_STEPS = 8
"""Decode iterations that share one factor when steps vary: the mean of as many draws."""


class Slowdown:
    """The factor of one instance. Called with the number of a step."""

    __slots__ = ("_averaged", "_factors", "_product", "_variation")

    def __init__(self, config: SimulationConfig, seed: int, name: ReplicaId, *, averaged: bool) -> None:
        """
        Args:
            averaged: one step stands for `JITTER_STEPS`.
        """
        varies = config.jitter > 0.0 or config.spike_share > 0.0
        self._variation = (
            StepVariation(config.jitter, config.spike_share, config.spike_factor, seed, name) if varies else None
        )
        self._averaged = averaged
        self._factors: list[float] = []
        self._product = 1.0

    @property
    def varies(self) -> bool:
        """Whether two steps may have different factors."""
        return self._variation is not None

    def add(self, factor: float) -> None:
        """Something slows the instance down from now on."""
        self._factors.append(factor)
        self._multiply()

    def remove(self, factor: float) -> None:
        """It is over."""
        self._factors.remove(factor)
        self._multiply()

    def __call__(self, step: int) -> float:
        variation = self._variation
        if variation is None:
            return self._product
        if not self._averaged:
            return self._product * variation.factor(step)
        return self._product * sum(variation.factor(step + n) for n in range(JITTER_STEPS)) / JITTER_STEPS

    def _multiply(self) -> None:
        product = 1.0
        for factor in self._factors:
            product *= factor
        self._product = product
