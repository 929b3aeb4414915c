"""Linear dependence of the time of work on its size, learned online.

time                                 level: mean of the last minute of work; it changes with the traffic's contexts
  |                  ...·'''        slope: from joint deviations within minutes, averaged over hours; slower
  |        ...·''' <- now                   changes are due to the traffic, and do not count for the slope
  +------------------------- size
"""

import math
from dataclasses import dataclass, field

LEVEL_S = 60.0
"""Time constant of the current point on the line [s of an instance's work, as all constants in this file]."""
TRAFFIC_S = 600.0
"""Time constant of the traffic's own changes: only deviations from its mean count for the slope."""
SLOPE_S = 7200.0
"""Time constant of the slope."""


@dataclass(slots=True)
class _Mean:
    """Exponential means of size and time."""

    constant_s: float
    size: float = 0.0
    time_s: float = 0.0
    _weight: float = 0.0

    def add(self, size: float, time_s: float, seconds: float) -> None:
        self._weight = self._weight * math.exp(-seconds / self.constant_s) + seconds
        gain = seconds / self._weight
        self.size += gain * (size - self.size)
        self.time_s += gain * (time_s - self.time_s)


@dataclass(slots=True)
class LearnedLine:
    """One line, learned by exponentially weighted regression.

    Args:
        same: mean square of the deviations of the size below which no slope is inferred.
    """

    same: float
    _level: _Mean = field(default_factory=lambda: _Mean(LEVEL_S))
    _traffic: _Mean = field(default_factory=lambda: _Mean(TRAFFIC_S))
    _worked_s: float = 0.0
    """Decays like `_moves`."""
    _moves: float = 0.0
    """Sum of squared deviations of the size, weighted by seconds of work."""
    _answers: float = 0.0
    """Sum of products of the deviations of size and time, with the same weights."""

    def see(self, size: float, time_s: float, seconds: float) -> None:
        """Add `seconds` of work in which `size` took `time_s`."""
        self._level.add(size, time_s, seconds)
        self._traffic.add(size, time_s, seconds)
        keep = math.exp(-seconds / SLOPE_S)
        move, answer = size - self._traffic.size, time_s - self._traffic.time_s
        self._worked_s = self._worked_s * keep + seconds
        self._moves = self._moves * keep + move * move * seconds
        self._answers = self._answers * keep + move * answer * seconds

    @property
    def known(self) -> bool:
        """Whether any work was added."""
        return self._worked_s > 0

    @property
    def size(self) -> float:
        """Recent mean size."""
        return self._level.size

    @property
    def time_s(self) -> float:
        """Recent mean time [s]."""
        return self._level.time_s

    @property
    def slope_s(self) -> float:
        """Additional time per unit of size [s]; 0 = not known."""
        if self._moves <= self.same * self._worked_s:
            return 0.0
        return max(0.0, self._answers / self._moves)
