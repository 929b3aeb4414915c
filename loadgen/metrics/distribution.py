"""From values to a `MetricDistribution`: exact percentiles, a curve for plots, failures as infinity."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.intervals import grouped_mean_interval, mean_interval
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
