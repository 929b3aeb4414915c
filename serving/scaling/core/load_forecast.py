"""Where a rate is going: level and trend of something that is counted, and how noisy that knowledge is.

Holt's method with time constants instead of gains, so that looks may come at any distance. Counts of independent events
scatter the more the shorter one counts; the spread kept here is per second of counting, so that the scatter of a rate
over any length of time follows from it.
"""

import math
from dataclasses import dataclass

LEVEL_S = 60.0
"""Time constant of the level: long enough for a few hundred requests of a busy pool, short against the hour on which
traffic turns. What is faster than this is a burst, and judged by its queue."""
TREND_S = 600.0
"""Time constant of the trend: a slope must last for minutes before instances are started for it."""
STEADY_S = 600.0
"""Time constant of the steady level."""
SPREAD_S = 900.0
"""Time constant of the spread."""
BIN_S = 2.0
"""Counts are taken together for at least this long: shorter ones are mostly zeros."""


@dataclass(slots=True)
class LoadForecast:
    """Forecast of one rate [1/s]."""

    level: float = 0.0
    steady: float = 0.0
    """The level over ten times as long: what the rate has been, where `level` is what it seems to be."""
    trend: float = 0.0
    """Per second."""
    spread: float = 0.0
    """Variance of the rate counted over one second, around what was expected."""
    elapsed_s: float = 0.0
    """Since the first count."""
    _amount: float = 0.0
    _amount_s: float = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Count what happened in the last `seconds`.

        Effects: level, trend and spread move once enough time came together.
        """
        self._amount += amount
        self._amount_s += seconds
        if self._amount_s >= BIN_S:
            self._step(self._amount / self._amount_s, self._amount_s)
            self._amount = self._amount_s = 0.0

    def ahead(self, seconds: float) -> float:
        """The rate so much later, never below 0. A trend is not believed for longer than it took to see it."""
        return max(0.0, self.level + self.trend * min(seconds, TREND_S))

    @property
    def noise(self) -> float:
        """Standard deviation of the level: an average with forgetting has seen two time constants."""
        return math.sqrt(self.spread / min(2 * LEVEL_S, max(self.elapsed_s, BIN_S)))

    def noise_over(self, seconds: float) -> float:
        """Standard deviation of the rate as counted over `seconds`."""
        return math.sqrt(self.spread / max(seconds, BIN_S))

    def _step(self, rate: float, seconds: float) -> None:
        expected = self.level + self.trend * seconds
        self.elapsed_s += seconds
        gain = gain_of(seconds, LEVEL_S, self.elapsed_s)
        level = max(0.0, expected + gain * (rate - expected))
        if self.elapsed_s > seconds:  # the first count is nothing that could have been expected
            error = (rate - expected) ** 2 * seconds
            self.spread += gain_of(seconds, SPREAD_S, self.elapsed_s) * (error - self.spread)
        if self.elapsed_s > LEVEL_S:
            self.trend += gain_of(seconds, TREND_S, 0.0) * ((level - self.level) / seconds - self.trend)
        self.level = level
        self.steady += gain_of(seconds, STEADY_S, self.elapsed_s) * (rate - self.steady)


def gain_of(seconds: float, constant_s: float, elapsed_s: float) -> float:
    """Weight of the newest of values that are `seconds` apart: a plain mean at first, then one that forgets.

    Args:
        elapsed_s: since the first value, this one included; 0 = forget from the start.
    """
    forgetting = 1.0 - math.exp(-seconds / constant_s)
    return max(forgetting, seconds / elapsed_s) if elapsed_s > 0 else forgetting
