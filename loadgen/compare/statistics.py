"""Ratios of two samples with 95 % intervals; pure, and without a statistics library.

Two ways, for two kinds of data:

    repetitions of a run     Welch's t interval on logarithms: each repetition is one independent value
    requests of single runs  bootstrap over blocks of neighbouring requests: requests that queued behind the same burst
                             are no independent values, so single ones must not be drawn

The second one cannot see what differs from run to run.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.intervals import student_quantile

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float]

CONFIDENCE = 0.95
_MOST_RESAMPLES, _FEWEST_RESAMPLES = 2000, 300
_WORK = 20_000_000
"""Values drawn in one bootstrap at most: about a second."""


def welch_ratio(baseline: Sequence[float], other: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Ratio of geometric means other / baseline, and its 95 % interval.

    Args:
        baseline, other: one positive value per repetition.
    Returns: the interval is None if a side has fewer than two values; it has no width if no side varies.
    """
    logs = [np.log(np.asarray(side, dtype=float)) for side in (baseline, other)]
    difference = float(logs[1].mean() - logs[0].mean())
    ratio = math.exp(difference)
    if min(len(side) for side in logs) < 2:
        return ratio, None
    parts = [float(side.var(ddof=1)) / len(side) for side in logs]
    error = math.sqrt(sum(parts))
    if error == 0:
        return ratio, (ratio, ratio)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    half = student_quantile(0.5 + CONFIDENCE / 2, freedom) * error
    return ratio, (math.exp(difference - half), math.exp(difference + half))


def bootstrap_ratio(
    baseline: Floats, other: Floats, statistic: Statistic, rng: np.random.Generator, *, paired: bool
) -> tuple[float, tuple[float, float] | None]:
    """statistic(other) / statistic(baseline) over requests in the order of their sending, and its 95 % interval.

    Args:
        baseline, other: one value per request; NaN for requests without one. Equally long if `paired`.
        paired: position i of both is the same request, so both are drawn together and what they share cancels.
    Returns: the interval is None if the statistic was zero or undefined in some draw.
    """
    ratio = _ratio(statistic(_known(baseline)), statistic(_known(other)))
    size = max(len(baseline), len(other))
    resamples = int(min(_MOST_RESAMPLES, max(_FEWEST_RESAMPLES, _WORK // max(size, 1))))
    ratios = np.empty(resamples)
    for draw in range(resamples):
        first = block_indices(len(baseline), rng)
        second = first if paired else block_indices(len(other), rng)
        ratios[draw] = _ratio(statistic(_known(baseline[first])), statistic(_known(other[second])))
    if not np.isfinite(ratios).all():
        return ratio, None
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return ratio, (float(low), float(high))


def block_indices(size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Indices of one resample of `size` values in blocks of about sqrt(size) neighbours, around the end.

    Source: Politis and Romano, A circular block-resampling procedure for stationary data, 1992.
    """
    length = max(1, round(math.sqrt(size)))
    starts = rng.integers(0, size, -(-size // length))
    indices: NDArray[np.int64] = ((starts[:, None] + np.arange(length)) % size).reshape(-1)[:size]
    return indices


def _known(values: Floats) -> Floats:
    """Values that exist."""
    known: Floats = values[~np.isnan(values)]
    return known


def _ratio(baseline: float, other: float) -> float:
    """other / baseline; NaN if there is none."""
    return other / baseline if baseline else math.nan
