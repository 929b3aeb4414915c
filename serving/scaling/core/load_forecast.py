"""Forecast of a rate from event counts: level, trend, and the standard error of both.

Holt's method with time constants instead of gains, so that polls may be unevenly spaced; a regression over the last
minute replaces it while traffic changes too fast for it. Counts of independent events scatter more over shorter
intervals; the variance is kept per second of counting, so that the standard deviation of a rate over any interval
follows from it.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.scaling.core.totals import Recent

LEVEL_S = 60.0
"""Time constant of the level: a few hundred requests of a busy pool, and short compared with the hour in which traffic
changes. Faster changes are bursts, which are judged by their queue."""
TREND_S = 600.0
"""Time constant of the trend: a slope must last for minutes before instances are started for it."""
STEADY_S = 600.0
"""Time constant of the steady level."""
SPREAD_S = 900.0
"""Time constant of the spread."""
BIN_S = 2.0
"""Counts are accumulated for at least this long: shorter ones are mostly zero."""


SLOPES_S = (45.0, 30.0)
"""Time constants of the regressions, which see a rate double within minutes. Shorter ones take chance for a slope."""
SLOPE_SIGMAS = 2.0
"""Standard deviations up to which a slope counts as chance; beyond, a steeper one counts more."""


@dataclass(slots=True)
class RecentSlope:
    """Regression of a rate on time, in which earlier values count exponentially less.

    Args:
        constant_s: time constant.
    """

    constant_s: float
    now: float = 0.0
    """Current rate."""
    slope: float = 0.0
    """Per second."""
    sure: float = 0.0
    """0 if the slope may be chance, towards 1 the more it exceeds that."""
    _elapsed_s: float = 0.0
    _sums: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)
    """Sums of weight, weight x age, weight x age squared; weight x rate, weight x age x rate."""
    _squares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The first three with squared weights, each per second of counting: the variance follows from them."""

    def add(self, rate: float, seconds: float, spread: float) -> None:
        """Add the rate counted over the last `seconds`.

        Args:
            spread: variance of the rate counted over one second.
        """
        keep = math.exp(-seconds / self.constant_s)
        one, age, age2, value, product = self._sums
        older = age + seconds * one, age2 + 2 * seconds * age + seconds**2 * one
        self._sums = (
            keep * one + seconds, keep * older[0], keep * older[1],
            keep * value + seconds * rate, keep * (product + seconds * value),
        )  # fmt: skip
        one, age, age2 = self._squares
        older = age + seconds * one, age2 + 2 * seconds * age + seconds**2 * one
        self._squares = keep**2 * one + seconds, keep**2 * older[0], keep**2 * older[1]
        self._elapsed_s += seconds
        if self._elapsed_s >= max(self.constant_s, 2 * seconds):  # at least two values
            self._fit(spread)

    def ahead(self, seconds: float) -> float:
        """The rate `seconds` from now; a slope is extrapolated by at most the time over which it was seen."""
        return self.now + self.slope * min(seconds, 2 * self.constant_s)

    def _fit(self, spread: float) -> None:
        one, age, age2, value, product = self._sums
        area = one * age2 - age * age
        if area <= 0.0:  # the values before have no weight any more
            self.now, self.slope, self.sure = value / one, 0.0, 0.0
            return
        self.now = (age2 * value - age * product) / area
        self.slope = (age * value - one * product) / area
        ones, ages, ages2 = self._squares
        variance = spread * (age * age * ones - 2 * one * age * ages + one * one * ages2) / area**2
        chance = SLOPE_SIGMAS**2 * max(0.0, variance)
        self.sure = 1.0 - chance / self.slope**2 if self.slope**2 > chance else 0.0


def _slopes() -> tuple[RecentSlope, ...]:
    return tuple(RecentSlope(seconds) for seconds in SLOPES_S)


@dataclass(slots=True)
class LoadForecast:
    """Forecast of one rate [1/s]."""

    level: float = 0.0
    steady: float = 0.0
    """The level over ten times as long: the past rate, where `level` estimates the current one."""
    trend: float = 0.0
    """Per second."""
    spread: float = 0.0
    """Variance of the rate counted over one second, around the expected rate."""
    elapsed_s: float = 0.0
    """Since the first count."""
    _amount: float = 0.0
    _amount_s: float = 0.0
    _slopes: tuple[RecentSlope, ...] = field(default_factory=_slopes)

    def add(self, amount: float, seconds: float) -> None:
        """Count what happened in the last `seconds`; level, trend and spread are updated once per `BIN_S`."""
        self._amount += amount
        self._amount_s += seconds
        if self._amount_s >= BIN_S:
            self._step(self._amount / self._amount_s, self._amount_s)
            self._amount = self._amount_s = 0.0

    def ahead(self, seconds: float) -> float:
        """The rate `seconds` from now, at least 0: by the trend, which is extrapolated by at most `TREND_S`, and by the
        regressions as far as their slopes are no chance.
        """
        rate = self.level + self.trend * min(seconds, TREND_S)
        for recent in self._slopes:
            rate += recent.sure * (recent.ahead(seconds) - rate)
        return max(0.0, rate)

    @property
    def noise(self) -> float:
        """Standard deviation of the level: an exponential average covers two time constants."""
        return math.sqrt(self.spread / min(2 * LEVEL_S, max(self.elapsed_s, BIN_S)))

    def noise_over(self, seconds: float) -> float:
        """Standard deviation of the rate as counted over `seconds`."""
        return math.sqrt(self.spread / max(seconds, BIN_S))

    def spread_at(self, rate: float) -> float:
        """`spread` at another rate: independent events scatter in proportion to it."""
        return self.spread * rate / self.steady if self.steady > 0 else self.spread

    def _step(self, rate: float, seconds: float) -> None:
        foreseen = self.ahead(seconds)
        expected = self.level + self.trend * seconds
        self.elapsed_s += seconds
        gain = gain_of(seconds, LEVEL_S, self.elapsed_s)
        level = max(0.0, expected + gain * (rate - expected))
        if self.elapsed_s > seconds:  # nothing was expected of the first count
            error = (rate - foreseen) ** 2 * seconds
            self.spread += gain_of(seconds, SPREAD_S, self.elapsed_s) * (error - self.spread)
        if self.elapsed_s > LEVEL_S:
            self.trend += gain_of(seconds, TREND_S, 0.0) * ((level - self.level) / seconds - self.trend)
        self.level = level
        for recent in self._slopes:
            recent.add(rate, seconds, self.spread_at(self.level))
        self.steady += gain_of(seconds, STEADY_S, self.elapsed_s) * (rate - self.steady)


def gain_of(seconds: float, constant_s: float, elapsed_s: float) -> float:
    """Weight of the latest of values that are `seconds` apart: a plain mean at first, then an exponential average.

    Args:
        elapsed_s: since the first value, this one included; 0 = exponential from the start.
    """
    forgetting = 1.0 - math.exp(-seconds / constant_s)
    return max(forgetting, seconds / elapsed_s) if elapsed_s > 0 else forgetting


# Exponential averages of a stock (a number of items) and of a share.


@dataclass(slots=True)
class StockAverage:
    """Mean and standard deviation of a stock, such as the number of running sequences.

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
        # Welford's step with exponential weights; the first value has no deviation
        if self.elapsed_s > seconds:
            self.variance += slow * (apart * (value - self.mean) - self.variance)

    @property
    def scatter(self) -> float:
        """Standard deviation of the stock itself."""
        return math.sqrt(max(0.0, self.variance))

    def noise(self, memory_s: float) -> float:
        """Standard deviation of the mean, if the stock's correlation time is `memory_s`, the residence of its items."""
        return math.sqrt(max(0.0, self.variance) * memory_s / (memory_s + self.constant_s))


@dataclass(slots=True)
class ShareAverage:
    """Ratio of two amounts, both exponentially weighted."""

    constant_s: float
    part: float = 0.0
    whole: float = 0.0

    def add(self, part: float, whole: float, seconds: float) -> None:
        """Count both for the last `seconds`; earlier amounts decay."""
        keep = math.exp(-seconds / self.constant_s)
        self.part = self.part * keep + part
        self.whole = self.whole * keep + whole

    def value(self, unknown: float) -> float:
        """Part per whole, or `unknown` before the first count."""
        return self.part / self.whole if self.whole > 1e-9 else unknown


# Current rate, counted over several short windows at once, so that bursts are detected early and without false alarms.
#
# Short counts are noisy: each is lowered by a few of its standard deviations, and the highest result is used. Twice the
# traffic is detected within ten seconds, eight times the traffic within one or two.

WINDOWS_S = (2.0, 5.0, 10.0, 20.0, 40.0)


def _windows() -> tuple[Recent, ...]:
    return tuple(Recent(seconds) for seconds in WINDOWS_S)


@dataclass(slots=True)
class FastRate:
    """Fast estimate of the rate of counted events.

    Args:
        sigmas: standard deviations by which a count is lowered; high, since five windows at each poll soon find an
            outlier.
    """

    sigmas: float
    _windows: tuple[Recent, ...] = field(default_factory=_windows)

    def add(self, amount: float, seconds: float) -> None:
        """Count the events of the last `seconds`."""
        for window in self._windows:
            window.add(amount, seconds)

    def rate(self, forecast: LoadForecast) -> float:
        """Rate [1/s] of the window with the highest lower bound."""
        return max(self._windows, key=lambda window: self._at_least(window, forecast)).rate

    def surely(self, forecast: LoadForecast) -> float:
        """Lower bound of the rate [1/s].

        Args:
            forecast: forecast of the same rate, for its noise.
        """
        return max(self._at_least(window, forecast) for window in self._windows)

    def _at_least(self, window: Recent, forecast: LoadForecast) -> float:
        return max(0.0, window.rate - self.sigmas * forecast.noise_over(window.seconds))


# Current growth of a stock, separated from its scatter over several short windows at once.
#
# The number of sequences may grow at a constant request rate: when responses become longer, fewer end for a while.
# Neither arrivals nor the residence of finished sequences show that; the number itself does.

GROWTH_WINDOWS_S = (5.0, 10.0, 20.0, 40.0)


class Rise(NamedTuple):
    """Expected growth of a stock: its lower bound, 0 if the growth may be chance, and the most likely value."""

    surely: float
    likely: float


@dataclass(slots=True)
class GrowthRate:
    """Growth of a stock with arrivals and departures.

    Args:
        sigmas: standard deviations by which a slope is lowered.
    """

    sigmas: float
    _seen: deque[tuple[float, float]] = field(default_factory=deque)
    """Clock [s] and stock at each poll."""
    _clock_s: float = 0.0

    def add(self, stock: float, seconds: float) -> None:
        """Add the current stock, `seconds` after the last poll; values older than the longest window are dropped."""
        self._clock_s += seconds
        self._seen.append((self._clock_s, stock))
        while len(self._seen) > 2 and self._seen[1][0] <= self._clock_s - GROWTH_WINDOWS_S[-1]:
            self._seen.popleft()

    def ahead(self, seconds: float, arrivals: LoadForecast) -> Rise:
        """Growth within the next `seconds`, from the window with the highest lower bound.

        Args:
            arrivals: forecast of the stock's arrivals. Departures scatter like arrivals, so a difference of the stock
                has twice the variance of the arrivals.
        Returns: growth; a slope is extrapolated by at most the time over which it was measured.
        """
        best, windows, stock = Rise(0.0, 0.0), list(GROWTH_WINDOWS_S), self._seen[-1][1] if self._seen else 0.0
        for clock_s, before in reversed(self._seen):
            seen_s = self._clock_s - clock_s
            if windows and seen_s >= windows[0]:
                windows.pop(0)
                noise = math.sqrt(2.0) * arrivals.noise_over(seen_s)
                slope, believed_s = (stock - before) / seen_s, min(seconds, seen_s)
                best = max(best, Rise((slope - self.sigmas * noise) * believed_s, slope * believed_s))
        return best
