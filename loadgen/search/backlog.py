"""Test for a growing backlog. It stops a probe early, and fails a probe whose requests still met the SLOs.

A queue in balance fluctuates, and its samples are autocorrelated, so an ordinary regression would find false trends.
Two precautions: samples are first averaged over a few stretches (long compared with the fluctuations), and the trend
must be both significant and larger than random arrivals explain. n arrivals of a Poisson process scatter by sqrt(n):
a server in balance may have a backlog of that many requests.

An overloaded server grows steadily by (offered - served) requests per second, in proportion to n, and so passes: at
25 % overload within 200 requests in 9 of 10 cases, at 10 % within 700 in 8 of 10 (M/D/1, simulated); a server at 95 %
of its capacity is wrongly called overloaded in less than 1 of 20. Each test during a run is another chance of a false
alarm, so there are few, see `look_times`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STRETCHES = 8
_T95_ONE_SIDED = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943)
"""Student's t, 95 % one-sided, for 1 to 6 degrees of freedom."""
LEAST_SAMPLES_PER_STRETCH = 3
LEAST_GROWTH = 5.0
"""Least growth of a backlog that counts [requests]; a growth of two or three is not conclusive."""
Z95_ONE_SIDED = 1.645
"""95 % quantile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through the averages of `STRETCHES` stretches.

    Attributes:
        slope_per_s: growth per second. lower_per_s: its lower 95 % limit (one-sided).
        growth: rise of the line over the window. start: its value at the window's beginning, at least 0.
        window_s: length of the window.
    """

    slope_per_s: float
    lower_per_s: float
    growth: float
    start: float
    window_s: float

    @property
    def is_significant(self) -> bool:
        """Whether chance alone does not explain the rise."""
        return self.lower_per_s > 0


def look_times(planned_s: float) -> tuple[float, ...]:
    """Times of the backlog tests in a probe of `planned_s` seconds: few tests, each with twice the data of the last."""
    return planned_s / 4, planned_s / 2, planned_s


def trend(times_s: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The trend of a quantity over its whole window; None with too few samples.

    Args:
        times_s: ascending. values: one per time.
    """
    times, quantity = np.asarray(times_s, np.float64), np.asarray(values, np.float64)
    if len(times) < STRETCHES * LEAST_SAMPLES_PER_STRETCH or not times[-1] > times[0]:
        return None
    middles, means = _averaged(times, quantity)
    if len(middles) < 4:
        return None
    window_s = float(times[-1] - times[0])
    centred = middles - middles.mean()
    spread = float(centred @ centred)
    slope = float(centred @ means) / spread
    rest = means - means.mean() - slope * centred
    freedom = len(middles) - 2
    error = math.sqrt(float(rest @ rest) / freedom / spread)
    start = float(means.mean()) + slope * float(times[0] - middles.mean())
    return Trend(slope, slope - _T95_ONE_SIDED[freedom - 1] * error, slope * window_s, max(0.0, start), window_s)


def running_grows(times_s: Sequence[float], running: Sequence[float], rate_per_s: float) -> str:
    """Whether requests in the server pile up in an open loop.

    Args:
        running: requests that were due and had not ended, at each time (including those waiting for a slot).
        rate_per_s: offered.
    Returns: a description of the backlog in one line; empty if the server is in balance or the test is undecided.
    """
    line = trend(times_s, running)
    if line is None or not line.is_significant:
        return ""
    luck = Z95_ONE_SIDED * math.sqrt(rate_per_s * line.window_s)
    if line.growth < max(LEAST_GROWTH, luck, line.start):
        return ""
    return (
        f"requests piled up by {line.slope_per_s:.2g} a second at {rate_per_s:g} a second offered "
        f"(from {line.start:.0f} to {line.start + line.growth:.0f} in {line.window_s:.0f} s)"
    )


def _averaged(times: NDArray[np.float64], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Mean time and mean value of each stretch of equal length; stretches without samples are left out."""
    edges = np.linspace(times[0], times[-1], STRETCHES + 1)[1:-1]
    stretch = np.searchsorted(edges, times, side="right")
    counts = np.bincount(stretch, minlength=STRETCHES)
    kept = counts > 0
    sums_t = np.bincount(stretch, weights=times, minlength=STRETCHES)
    sums_v = np.bincount(stretch, weights=values, minlength=STRETCHES)
    return sums_t[kept] / counts[kept], sums_v[kept] / counts[kept]
