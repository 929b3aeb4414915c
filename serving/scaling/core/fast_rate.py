"""How much comes right now, counted over several short times at once: a burst is neither to be imagined nor awaited.

The shorter a count, the less it is to be believed: each is lowered by a few of its standard deviations, and the one
that then says most is taken. Twice the traffic shows within ten seconds, eight times the traffic within one or two.
"""

from dataclasses import dataclass, field

from serving.scaling.core.load_forecast import LoadForecast
from serving.scaling.core.recent import Recent

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
