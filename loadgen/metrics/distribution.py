"""From values to a `MetricDistribution`: exact percentiles, a curve for plots, failures as infinity."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.result import MetricDistribution

CURVE = (0, 1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 82.5, 85, 87.5, 90, 91, 92, 93, 94, 95,
         96, 97, 97.5, 98, 98.5, 99, 99.25, 99.5, 99.75, 99.9, 99.95, 99.99, 100)  # fmt: skip
"""Percentiles of a plotted curve, denser towards 100."""


def distribution(
    values: NDArray[np.float64],
    unit: str,
    percentiles: Sequence[float],
    *,
    failures: int | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> MetricDistribution:
    """Full statistics of one metric.

    Args:
        values: shape [count], any order; with `sizes` request after request.
        percentiles: requested ones, in addition to those of the curve.
        failures: requests that have no value because they failed; None if the metric is no latency.
        sizes: values of each request, shape [requests]; None = one each. The interval of the mean is over requests.
    """
    if not len(values):
        return MetricDistribution(
            unit=unit, count=0, with_failures={name_of(p): None for p in percentiles} if failures else {}
        )
    ordered = np.sort(values)
    curve = np.percentile(ordered, CURVE)
    return MetricDistribution(
        unit=unit,
        count=len(ordered),
        mean=float(ordered.mean()),
        std=float(ordered.std()),
        min=float(ordered[0]),
        max=float(ordered[-1]),
        percentiles={name_of(p): float(np.percentile(ordered, p)) for p in percentiles},
        with_failures={} if failures is None else _with_failures(ordered, failures, percentiles),
        curve=[(float(p), float(value)) for p, value in zip(CURVE, curve, strict=True)],
        ci95=mean_interval(values) if sizes is None else grouped_mean_interval(values, sizes),
    )


def name_of(percentile: float) -> str:
    """A percentile as a key: 50 -> "50", 99.9 -> "99.9"."""
    return f"{percentile:.12g}"


def _with_failures(
    ordered: NDArray[np.float64], failures: int, percentiles: Sequence[float]
) -> dict[str, float | None]:
    """Percentiles of the values and `failures` times infinity; None where that is infinite."""
    total = len(ordered) + failures
    found: dict[str, float | None] = {}
    for percentile in percentiles:
        place = percentile / 100 * (total - 1)
        low = math.floor(place)
        high = low if place == low else low + 1
        if high >= len(ordered):
            found[name_of(percentile)] = None
        else:
            found[name_of(percentile)] = float(ordered[low] + (ordered[high] - ordered[low]) * (place - low))
    return found


# Confidence intervals: of a share (Wilson), of a mean (Student's t), of a mean over groups of values.

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""

_EXPANDED_FROM = 30
"""Degrees of freedom from which the expansion of Student's quantile errs by less than 0.001."""


def wilson(good: int, counted: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval of a share; (0, 1) if `counted` is 0.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    """
    if counted <= 0:
        return 0.0, 1.0
    share = good / counted
    scale = 1 + z * z / counted
    middle = (share + z * z / (2 * counted)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / counted + z * z / (4 * counted * counted))
    low = 0.0 if good == 0 else max(0.0, middle - half)
    return low, (1.0 if good == counted else min(1.0, middle + half))


@functools.cache
def t95(freedom: int) -> float:
    """97.5 % quantile of Student's t; beyond 30 degrees of freedom by the usual expansion (error below 0.001).

    Raises: ValueError below one degree of freedom.
    """
    if freedom < 1:
        raise ValueError("Student's t needs at least one degree of freedom")
    if freedom <= _EXPANDED_FROM:
        return student_quantile(0.975, freedom)
    return Z95 + (Z95**3 + Z95) / (4 * freedom) + (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / (96 * freedom**2)


def student_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t distribution, by bisection over its integrated density.

    Args:
        probability: above 0.5. freedom: degrees of freedom, need not be whole.
    """
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _student_cdf(value: float, freedom: float) -> float:
    """P(T <= value) for value >= 0: with t = sqrt(f) tan(a) the density is proportional to cos(a)^(f-1)."""
    angles = np.linspace(0.0, math.atan(value / math.sqrt(freedom)), 2001)
    heights = np.cos(angles) ** (freedom - 1)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    weights = np.ones(2001)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return 0.5 + scale * float(weights @ heights) * float(angles[1]) / 3


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float] | None:
    """95 % interval of the mean of independent values; None with fewer than two."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return None
    half = t95(len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return float(array.mean()) - half, float(array.mean()) + half


def grouped_mean_interval(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> tuple[float, float] | None:
    """95 % interval of the mean of values in groups, such as the gaps between the chunks of one request.

    Values of one group resemble each other, so a thousand gaps of one slow request are not a thousand observations; the
    groups are independent. With groups of one value it is `mean_interval`.

    Args:
        values: shape [values], group after group. sizes: values of each group, shape [groups].
    Returns: None with fewer than two groups that have values.
    Source: W. G. Cochran, "Sampling Techniques", 3rd edition, section 6.3 (variance of a ratio estimate).
    """
    sizes = sizes[sizes > 0]
    if len(sizes) < 2:
        return None
    mean = float(values.mean())
    sums = np.add.reduceat(values, np.concatenate([[0], np.cumsum(sizes)[:-1]]))
    scatter = float((sums - mean * sizes).std(ddof=1))
    half = t95(len(sizes) - 1) * scatter / (math.sqrt(len(sizes)) * float(sizes.mean()))
    return mean - half, mean + half
