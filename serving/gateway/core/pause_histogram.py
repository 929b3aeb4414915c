"""Histogram of pauses whose older observations count less. Pure."""

from bisect import bisect_left

GROWTH = 1.25
"""Ratio of neighbouring bucket bounds: a quantile is too high by less than this factor, and never too low."""
LEAST_S = 0.25
"""Upper bound of the first bucket; shorter pauses are not distinguished."""
LONGEST_S = 86_400.0
"""Longer pauses are not pauses of a tool."""
HALF_LIFE = 100
"""Observations after which an older one counts half. Not a time: a quiet night forgets nothing, nor does a clock that
jumps."""

_BOUNDS = tuple(LEAST_S * GROWTH**index for index in range(59))
_DECAY = 0.5 ** (1 / HALF_LIFE)


class PauseHistogram:
    """Pauses of one tool. O(buckets) per call; 59 numbers."""

    __slots__ = ("_weights", "total")

    def __init__(self) -> None:
        self._weights = [0.0] * len(_BOUNDS)
        self.total = 0.0
        """Sum of the weights."""

    def observe(self, pause_s: float, weight: float = 1.0) -> None:
        """Count a pause; times outside 0 to `LONGEST_S` are ignored."""
        if not 0 <= pause_s <= LONGEST_S:
            return
        self._weights = [one * _DECAY for one in self._weights]
        self._weights[bisect_left(_BOUNDS, pause_s)] += weight
        self.total = sum(self._weights)

    def quantile(self, share: float) -> float:
        """The pause that this share of the weights does not exceed [s]: the upper bound of its bucket; 0 if empty."""
        wanted, below = share * self.total * (1 - 1e-12), 0.0
        for bound, weight in zip(_BOUNDS, self._weights, strict=True):
            below += weight
            if weight and below >= wanted:
                return bound
        return 0.0
