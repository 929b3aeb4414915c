"""Distributions of one number: token lengths, turns of a conversation, think times.

Each has a mean or a median that a person can name, since that is what they type on the command line.
"""

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from loadgen.errors import UsageError


class Distribution(Protocol):
    """Distribution of values. Implementations are frozen dataclasses; values are not clipped (see `lengths`)."""

    def value(self, rng: np.random.Generator) -> float:
        """One value. Effects: advances `rng`."""
        ...

    def whole(self, rng: np.random.Generator) -> int:
        """One whole number, rounded without bias. Effects: advances `rng`."""
        ...

    @property
    def least(self) -> int:
        """The smallest possible whole number; 0 if any small one is possible."""
        ...


@dataclass(frozen=True)
class Fixed:
    """Always the same. Does not use the random stream, so that a fixed length leaves all else unchanged."""

    number: float

    def value(self, rng: np.random.Generator) -> float:
        """The number."""
        return self.number

    def whole(self, rng: np.random.Generator) -> int:
        """The number, rounded."""
        return _rounded(self.number)

    @property
    def least(self) -> int:
        return _rounded(self.number)


@dataclass(frozen=True)
class Uniform:
    """Equally likely from `low` to `high`, both included."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Raises: UsageError if the bounds are the wrong way round."""
        if not self.low <= self.high:
            raise UsageError(f"uniform:{self.low:g}-{self.high:g} is empty; write the smaller number first")

    def value(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))

    def whole(self, rng: np.random.Generator) -> int:
        """Every whole number of the range equally often (rounding `value` would give the ends half their share)."""
        low = math.ceil(self.low)
        return int(rng.integers(low, max(low, math.floor(self.high)), endpoint=True))

    @property
    def least(self) -> int:
        return math.ceil(self.low)


@dataclass(frozen=True)
class Normal:
    """Normal with this mean and standard deviation."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        """Raises: UsageError for a negative deviation."""
        if self.std < 0:
            raise UsageError(f"normal:{self.mean:g},{self.std:g}: the standard deviation cannot be below 0")

    def value(self, rng: np.random.Generator) -> float:
        return float(rng.normal(self.mean, self.std))

    def whole(self, rng: np.random.Generator) -> int:
        return _rounded(self.value(rng))

    @property
    def least(self) -> int:
        return 0 if self.std else _rounded(self.mean)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal: half of the values are below `median`, two thirds within a factor of exp(`sigma`) of it.

    The mean is median x exp(sigma^2 / 2): 1.38 x median for sigma 0.8.
    """

    median: float
    sigma: float

    def __post_init__(self) -> None:
        """Raises: UsageError for a median that is not above 0 or a negative sigma."""
        if not (self.median > 0 and self.sigma >= 0):
            raise UsageError(
                f"lognormal:{self.median:g},{self.sigma:g} needs a median above 0 and a sigma of at least 0"
            )

    def value(self, rng: np.random.Generator) -> float:
        return self.median * math.exp(self.sigma * float(rng.standard_normal()))

    def whole(self, rng: np.random.Generator) -> int:
        return _rounded(self.value(rng))

    @property
    def least(self) -> int:
        return 0 if self.sigma else _rounded(self.median)


@dataclass(frozen=True)
class Histogram:
    """Values with weights, which need not sum to 1. Values are drawn exactly, not smeared over a bin."""

    values: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises: UsageError if there are no values, or a weight is negative or not finite."""
        if not self.values or len(self.values) != len(self.weights):
            raise UsageError("a histogram needs as many weights as values, and at least one")
        if not all(0 <= weight < math.inf for weight in self.weights) or not any(self.weights):
            raise UsageError("a histogram's weights must be at least 0, and one above 0")

    @cached_property
    def _cumulative(self) -> list[float]:
        return list(itertools.accumulate(self.weights))

    def value(self, rng: np.random.Generator) -> float:
        drawn = float(rng.random()) * self._cumulative[-1]
        # Rounding may carry the product to the very end, after the last value that has a weight.
        return self.values[min(bisect_right(self._cumulative, drawn), self._last)]

    def whole(self, rng: np.random.Generator) -> int:
        return _rounded(self.value(rng))

    @property
    def least(self) -> int:
        return min(_rounded(value) for value, weight in zip(self.values, self.weights, strict=True) if weight)

    @cached_property
    def _last(self) -> int:
        return max(index for index, weight in enumerate(self.weights) if weight)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)
