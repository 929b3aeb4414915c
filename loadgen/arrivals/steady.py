"""Arrivals at one rate: constant, Poisson, gamma; and all at once."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.arrivals.process import BLOCK, FloatArray, checked_burstiness, checked_rate, events


@dataclass(frozen=True)
class Steady:
    """Requests at a rate that does not change.

    Attributes:
        rate_per_s: mean rate; infinite = every request at time 0, as `--request-rate inf` means.
        burstiness: 1 = Poisson; below 1 = bursts; infinite = constant, the first at 0 (see `process.events`).
    """

    rate_per_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        """Raises: UsageError for a rate or burstiness that is not above 0."""
        checked_burstiness(self.burstiness)
        if self.rate_per_s != math.inf:
            checked_rate(self.rate_per_s, "the rate")

    def blocks(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Endless; see `Arrivals`."""
        while math.isinf(self.rate_per_s):
            yield np.zeros(BLOCK)
        for block in events(self.burstiness, rng):
            yield block / self.rate_per_s
