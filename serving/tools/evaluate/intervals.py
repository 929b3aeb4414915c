"""Uncertainty of figures: intervals by bootstrap over blocks of text, standard errors of means."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCK_TOKENS = 256
"""Tokens that are drawn together: neighbours are hard or easy together, and single draws would understate the error."""

RESAMPLES = 1000
_SEED = 20240601
_DRAWS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with the interval that holds it in 95 of 100 texts of this kind; None where there is too little text."""

    value: float
    low: float | None = None
    high: float | None = None

    def map(self, change: Callable[[float], float]) -> "Estimate":
        """The figure in other units, by a rising function."""
        return Estimate(change(self.value), *(None if end is None else change(end) for end in (self.low, self.high)))


def block_sums(parts: list[Floats]) -> tuple[Floats, Floats]:
    """Sums and counts of blocks of neighbouring tokens.

    Args:
        parts: values per token, one array for each run of tokens that belong together (a document).
    Returns: `[blocks]` sums, `[blocks]` counts; no block spans two parts.
    """
    blocks = [part[i : i + BLOCK_TOKENS] for part in parts for i in range(0, len(part), BLOCK_TOKENS)]
    sums = np.array([block.sum() for block in blocks], dtype=np.float64)
    return sums, np.array([len(block) for block in blocks], dtype=np.float64)


def bootstrap_mean(parts: list[Floats]) -> Estimate:
    """The mean over all tokens, with its interval from resampled blocks.

    Args:
        parts: values per token, one array per document; at least one value in all.
    Effects: none; the same values give the same interval.
    """
    sums, counts = block_sums(parts)
    mean = float(sums.sum() / counts.sum())
    if len(sums) < 2:
        return Estimate(mean)
    rng = np.random.default_rng(_SEED)
    means = []
    for _ in range(RESAMPLES // _DRAWS_AT_ONCE):
        drawn = rng.integers(0, len(sums), (_DRAWS_AT_ONCE, len(sums)))
        means.append(sums[drawn].sum(1) / counts[drawn].sum(1))
    low, high = np.quantile(np.concatenate(means), (0.025, 0.975))
    return Estimate(mean, float(low), float(high))


def mean_and_error(values: list[float]) -> tuple[float, float | None]:
    """Mean, and its standard error from the sample's deviation (n - 1); None for a single value.

    Source: what the lm-evaluation-harness reports as `stderr` of metrics that are means.
    """
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance / len(values))
