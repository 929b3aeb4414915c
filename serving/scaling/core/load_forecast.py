"""Where a rate is going: level and trend of something that is counted, and how noisy that knowledge is.

Holt's method with time constants instead of gains, so that looks may come at any distance. Counts of independent events
scatter the more the shorter one counts; the spread kept here is per second of counting, so that the scatter of a rate
over any length of time follows from it.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.scaling.core.totals import Recent

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


# Averages that forget: of a stock (how many are there) and of a share (how many of those).


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


# How much comes right now, counted over several short times at once: a burst is neither to be imagined nor awaited.
#
# The shorter a count, the less it is to be believed: each is lowered by a few of its standard deviations, and the one
# that then says most is taken. Twice the traffic shows within ten seconds, eight times the traffic within one or two.

WINDOWS_S = (2.0, 5.0, 10.0, 20.0, 40.0)


def _windows() -> tuple[Recent, ...]:
    return tuple(Recent(seconds) for seconds in WINDOWS_S)


@dataclass(slots=True)
class FastRate:
    """Fast estimate of the rate of something that is counted.

    Args:
        sigmas: standard deviations by which a count is lowered; five counts a second find a rare one soon.
    """

    sigmas: float
    _windows: tuple[Recent, ...] = field(default_factory=_windows)

    def add(self, amount: float, seconds: float) -> None:
        """Count what came in the last `seconds`."""
        for window in self._windows:
            window.add(amount, seconds)

    def rate(self, course: LoadForecast) -> float:
        """Per second, as the most telling count says it."""
        return max(self._windows, key=lambda window: self._at_least(window, course)).rate

    def surely(self, course: LoadForecast) -> float:
        """Per second, at the least.

        Args:
            course: of the same thing, for its noise.
        """
        return max(self._at_least(window, course) for window in self._windows)

    def _at_least(self, window: Recent, course: LoadForecast) -> float:
        return max(0.0, window.rate - self.sigmas * course.noise_over(window.seconds))


# How fast a stock grows right now, told from its own scatter over several short times at once.
#
# Sequences may become more although no more requests come: when answers become longer, nobody leaves for a while.
# Neither arrivals nor a residence measured on those who left show that; the number itself does.

GROWTH_WINDOWS_S = (5.0, 10.0, 20.0, 40.0)


class Rise(NamedTuple):
    """By how much a stock will have grown: at the least, 0 if it may be chance; and the best guess."""

    surely: float
    likely: float


@dataclass(slots=True)
class GrowthRate:
    """GrowthRate of a stock that grows by arrivals and shrinks by departures.

    Args:
        sigmas: standard deviations by which a slope is lowered.
    """

    sigmas: float
    _seen: deque[tuple[float, float]] = field(default_factory=deque)
    """Clock and stock at each look."""
    _clock_s: float = 0.0

    def add(self, stock: float, seconds: float) -> None:
        """Add the stock now, `seconds` after the last tick. Effects: forgets what is older than the longest window."""
        self._clock_s += seconds
        self._seen.append((self._clock_s, stock))
        while len(self._seen) > 2 and self._seen[1][0] <= self._clock_s - GROWTH_WINDOWS_S[-1]:
            self._seen.popleft()

    def ahead(self, seconds: float, arrivals: LoadForecast) -> Rise:
        """Growth within so many seconds, as the most telling window says it.

        Args:
            arrivals: of the same stock. What leaves scatters like what comes, so that a difference over some time has
                twice its variance.
        Returns: a slope is not believed for longer than it took to see it.
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
