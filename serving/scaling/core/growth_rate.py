"""How fast a stock grows right now, told from its own scatter over several short times at once.

Sequences may become more although no more requests come: when answers become longer, nobody leaves for a while. Neither
arrivals nor a residence measured on those who left show that; the number itself does.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from serving.scaling.core.load_forecast import LoadForecast

WINDOWS_S = (5.0, 10.0, 20.0, 40.0)


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
        while len(self._seen) > 2 and self._seen[1][0] <= self._clock_s - WINDOWS_S[-1]:
            self._seen.popleft()

    def ahead(self, seconds: float, arrivals: LoadForecast) -> Rise:
        """Growth within so many seconds, as the most telling window says it.

        Args:
            arrivals: of the same stock. What leaves scatters like what comes, so that a difference over some time has
                twice its variance.
        Returns: a slope is not believed for longer than it took to see it.
        """
        best, windows, stock = Rise(0.0, 0.0), list(WINDOWS_S), self._seen[-1][1] if self._seen else 0.0
        for clock_s, before in reversed(self._seen):
            seen_s = self._clock_s - clock_s
            if windows and seen_s >= windows[0]:
                windows.pop(0)
                noise = math.sqrt(2.0) * arrivals.noise_over(seen_s)
                slope, believed_s = (stock - before) / seen_s, min(seconds, seen_s)
                best = max(best, Rise((slope - self.sigmas * noise) * believed_s, slope * believed_s))
        return best
