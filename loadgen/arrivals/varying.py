"""Arrivals whose rate changes during the run: ramps and steps, each with any burstiness.

Both carry unit-rate events to seconds through the inverse of their cumulative rate (see `process`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import numpy as np

from loadgen.arrivals.process import FloatArray, checked_burstiness, checked_rate, events
from loadgen.errors import UsageError


class RampShape(StrEnum):
    """How the rate changes between the two values; the names are those of `--ramp-up-strategy`."""

    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True)
class Ramp:
    """A rate that changes from one value to another over a given time and then stays constant.

    `vllm bench serve` ramps by request number, so its slow part lasts longer than specified; this one ramps by time.

    Attributes:
        from_per_s, to_per_s: rates at the start and at the end; up or down.
        duration_s: time of the change.
        shape: linear, or exponential (equal factors in equal times).
        burstiness: see `Steady`.
    """

    from_per_s: float
    to_per_s: float
    duration_s: float
    shape: RampShape = RampShape.LINEAR
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        """Raises: UsageError for rates, a duration or a burstiness that are not above 0."""
        checked_rate(self.from_per_s, "the ramp's first rate")
        checked_rate(self.to_per_s, "the ramp's last rate")
        checked_burstiness(self.burstiness)
        if not 0 < self.duration_s < math.inf:
            raise UsageError(f"a ramp needs a duration above 0, not {self.duration_s} s")

    @classmethod
    def over_count(
        cls,
        from_per_s: float,
        to_per_s: float,
        count: int,
        shape: RampShape = RampShape.LINEAR,
        burstiness: float = 1.0,
    ) -> Self:
        """The ramp in whose duration `count` requests come on average.

        Raises: UsageError as the class, and for a count below 1.
        """
        per_s = cls(from_per_s, to_per_s, 1.0, shape, burstiness).expected(1.0)
        return cls(from_per_s, to_per_s, count / per_s, shape, burstiness)

    def expected(self, until_s: float) -> float:
        """Mean number of requests in [0, until_s): the cumulative rate."""
        t = min(until_s, self.duration_s)
        after = self.to_per_s * (until_s - t)
        if self.shape is RampShape.EXPONENTIAL and self.to_per_s != self.from_per_s:
            growth = math.log(self.to_per_s / self.from_per_s) / self.duration_s
            return self.from_per_s * math.expm1(growth * t) / growth + after
        slope = (self.to_per_s - self.from_per_s) / self.duration_s
        return self.from_per_s * t + slope * t * t / 2 + after

    def blocks(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Endless; see `Arrivals`."""
        reached = self.expected(self.duration_s)
        for block in events(self.burstiness, rng):
            inside = self._inside(np.minimum(block, reached))
            yield np.where(block < reached, inside, self.duration_s + (block - reached) / self.to_per_s)

    def _inside(self, expected: FloatArray) -> FloatArray:
        """Times within the ramp at which the cumulative rate is `expected`."""
        first = self.from_per_s
        if self.shape is RampShape.EXPONENTIAL and self.to_per_s != first:
            growth = math.log(self.to_per_s / first) / self.duration_s
            return np.asarray(np.log1p(growth * expected / first) / growth)
        slope = (self.to_per_s - first) / self.duration_s
        # The usual root of the quadratic, written so that it stays exact for a slope near or at 0.
        root = np.sqrt(np.maximum(first * first + 2 * slope * expected, 0))
        return np.asarray(2 * expected / (first + root))


@dataclass(frozen=True)
class Steps:
    """Rates that hold for given times, one after another; then it ends.

    Attributes:
        steps: (rate per second, duration [s]) each; a rate of 0 is a pause.
        burstiness: see `Steady`.
    """

    steps: tuple[tuple[float, float], ...]
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        """Raises: UsageError for negative rates, durations not above 0, or if no step has a rate."""
        checked_burstiness(self.burstiness)
        for rate_per_s, duration_s in self.steps:
            if not (0 <= rate_per_s < math.inf and 0 < duration_s < math.inf):
                raise UsageError(
                    f"a step needs a rate of at least 0 and a duration above 0, not {rate_per_s}:{duration_s}s"
                )
        if not any(rate_per_s for rate_per_s, _ in self.steps):
            raise UsageError("rate steps need at least one rate above 0, e.g. 2:30s,8:30s")

    @property
    def duration_s(self) -> float:
        """Time of all steps together."""
        return math.fsum(duration_s for _, duration_s in self.steps)

    def blocks(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Ends with the last step; see `Arrivals`."""
        rates, durations = np.array(self.steps, dtype=np.float64).T
        begin_s = np.concatenate([[0.0], np.cumsum(durations)])
        reached = np.concatenate([[0.0], np.cumsum(rates * durations)])
        for block in events(self.burstiness, rng):
            inside = block[: int(np.searchsorted(block, reached[-1]))]
            # "right": an event on a boundary belongs to the step that starts at it, which is never a pause.
            step = np.searchsorted(reached[1:], inside, side="right")
            yield begin_s[step] + (inside - reached[step]) / rates[step]
            if len(inside) < len(block):
                return
