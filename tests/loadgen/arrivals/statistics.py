"""Comparing a sample with an exact law."""

import math
from collections.abc import Callable

import numpy as np

from loadgen.arrivals.process import FloatArray


def ks_distance(sample: FloatArray, cdf: Callable[[FloatArray], FloatArray]) -> float:
    """Kolmogorov-Smirnov distance between a sample and a distribution function."""
    expected = cdf(np.sort(sample))
    steps = np.arange(len(sample) + 1) / len(sample)
    return float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))


def ks_limit(count: int, level: float = 0.001) -> float:
    """Distance that a sample of the right law exceeds with probability `level` (asymptotic)."""
    return math.sqrt(-math.log(level / 2) / 2 / count)


def exponential_cdf(rate_per_s: float) -> Callable[[FloatArray], FloatArray]:
    """Distribution of the gaps of a Poisson process."""
    return lambda gaps: -np.expm1(-rate_per_s * gaps)


def variation(gaps: FloatArray) -> float:
    """Coefficient of variation."""
    return float(np.std(gaps) / np.mean(gaps))
