"""Averages that forget: of a stock (how many are there) and of a share (how many of those)."""

import math
from dataclasses import dataclass

from serving.scaling.core.load_forecast import gain_of


@dataclass(slots=True)
class StockAverage:
    """Mean and scatter of something that is there, such as running sequences.

    Args:
        constant_s: time constant.
    """

    constant_s: float
    mean: float = 0.0
    steady: float = 0.0
    """Mean over ten times as long."""
    variance: float = 0.0
    elapsed_s: float = 0.0

    def add(self, value: float, seconds: float) -> None:
        """Add a value that held for the last `seconds` (more than 0)."""
        self.elapsed_s += seconds
        gain = gain_of(seconds, self.constant_s, self.elapsed_s)
        apart = value - self.mean
        self.mean += gain * apart
        slow = gain_of(seconds, 10 * self.constant_s, self.elapsed_s)
        self.steady += slow * (value - self.steady)
        # Welford's step with forgetting; the first value is no scatter
        if self.elapsed_s > seconds:
            self.variance += slow * (apart * (value - self.mean) - self.variance)

    @property
    def scatter(self) -> float:
        """Standard deviation of the stock itself."""
        return math.sqrt(max(0.0, self.variance))

    def noise(self, memory_s: float) -> float:
        """Standard deviation of the mean, if the stock forgets itself within `memory_s`: residence of what is there."""
        return math.sqrt(max(0.0, self.variance) * memory_s / (memory_s + self.constant_s))


@dataclass(slots=True)
class ShareAverage:
    """Amounts of one thing per amount of another, both recent."""

    constant_s: float
    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float, seconds: float) -> None:
        """Count both for the last `seconds`. Effects: what was known decays."""
        keep = math.exp(-seconds / self.constant_s)
        self.part = self.part * keep + part
        self.whole = self.whole * keep + whole

    def value(self, unknown: float) -> float:
        """Part per whole, or `unknown` before anything was counted."""
        return self.part / self.whole if self.whole > 1e-9 else unknown
