"""Samples of arrival processes, and their comparison with an exact distribution."""

import math
from collections.abc import Callable

import numpy as np

from loadgen.arrivals.process import Arrivals, FloatArray


def draw(
    arrivals: Arrivals, rng: np.random.Generator, *, count: int | None = None, until_s: float = math.inf
) -> FloatArray:
    """The first `count` times, or those before `until_s`, whichever is fewer, as one array. Effects: advances `rng`."""
    assert count is not None or until_s < math.inf
    parts: list[FloatArray] = []
    have = 0
    for block in arrivals.blocks(rng):
        kept = block[: int(np.searchsorted(block, until_s))]
        parts.append(kept)
        have += len(kept)
        if len(kept) < len(block) or (count is not None and have >= count):
            break
    return np.concatenate([*parts, np.empty(0)])[:count]


def ks_distance(sample: FloatArray, cdf: Callable[[FloatArray], FloatArray]) -> float:
    """Kolmogorov-Smirnov distance between a sample and a distribution function."""
    expected = cdf(np.sort(sample))
    steps = np.arange(len(sample) + 1) / len(sample)
    return float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))


def ks_limit(count: int, level: float = 0.001) -> float:
    """Distance that a sample of the correct distribution exceeds with probability `level` (asymptotic)."""
    return math.sqrt(-math.log(level / 2) / 2 / count)


def exponential_cdf(rate_per_s: float) -> Callable[[FloatArray], FloatArray]:
    """Distribution of the gaps of a Poisson process."""
    return lambda gaps: -np.expm1(-rate_per_s * gaps)


def variation(gaps: FloatArray) -> float:
    """Coefficient of variation."""
    return float(np.std(gaps) / np.mean(gaps))
