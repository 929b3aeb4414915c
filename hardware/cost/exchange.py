"""Dispatch and combine: duration of one exchange of tokens between the dies of an expert-parallel group.

Measured degrees are met exactly. Between and outside of them: a straight line over log2(degree) that saturates, plus
the deviation of the measured neighbours from it. The line alone is what leave-one-out tests.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hardware.cost.device_model import ExpertTable
from hardware.units import Seconds


@dataclass(frozen=True, slots=True)
class SaturatingLine:
    """latency = at_first + slope * log2(min(degree, saturates) / first), and what measurements deviate from it."""

    at_first_s: float
    slope_s: float
    first: float
    saturates: float
    degrees: tuple[int, ...]
    deviations_s: tuple[float, ...]

    def trend_s(self, degree: float) -> float:
        """The line alone."""
        return self.at_first_s + self.slope_s * math.log2(min(degree, self.saturates) / self.first)

    def seconds(self, degree: float) -> Seconds:
        """The line and its deviation, which is interpolated over log2(degree) and constant outside the table."""
        at = bisect.bisect_left(self.degrees, degree)
        if at == 0 or at == len(self.degrees):
            deviation = self.deviations_s[min(at, len(self.degrees) - 1)]
        else:
            low, high = self.degrees[at - 1], self.degrees[at]
            share = math.log2(degree / low) / math.log2(high / low)
            deviation = self.deviations_s[at - 1] * (1 - share) + self.deviations_s[at] * share
        return Seconds(max(0.0, self.trend_s(degree) + deviation))


def fit_line(degrees: Sequence[int], latencies_s: Sequence[float], saturates: float) -> SaturatingLine:
    """Least squares over log2(min(degree, saturates)).

    Args:
        degrees: rising, at least one; with a single one the line is flat.
        saturates: degree from which latency no longer rises.
    """
    first = degrees[0]
    x = np.log2(np.minimum(np.asarray(degrees, dtype=float), saturates) / first)
    y = np.asarray(latencies_s, dtype=float)
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0
    at_first = float(y.mean() - slope * x.mean())
    deviations = tuple(float(value) for value in y - (at_first + slope * x))
    return SaturatingLine(at_first, slope, first, saturates, tuple(degrees), deviations)


def dispatch_line(table: ExpertTable) -> SaturatingLine:
    """Latency of dispatch over the degree, at the table's tokens per rank."""
    return fit_line(table.degrees, table.dispatch_s, table.dispatch_saturates)


def combine_line(table: ExpertTable) -> SaturatingLine:
    """Latency of combine over the degree, at the table's tokens per rank."""
    return fit_line(table.degrees, table.combine_s, table.combine_saturates)
