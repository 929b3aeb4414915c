"""How the time of something depends on its size, learned from work: a line.

time                                 level: of the last minute of work; it moves with the traffic's contexts
  |                  ...·'''        slope: how both moved together within minutes, over hours; what moves
  |        ...·''' <- now                   slower is traffic that changed, and says nothing of the slope
  +------------------------- size
"""

import math
from dataclasses import dataclass, field

LEVEL_S = 60.0
"""Time constant of where on the line the pool is [s of an instance's work, as all of them here]."""
TRAFFIC_S = 600.0
"""Time constant of what is taken for the traffic's own: only moves against it tell of the slope."""
SLOPE_S = 7200.0
"""Time constant of the slope."""


@dataclass(slots=True)
class _Mean:
    """Means of both quantities, with forgetting."""

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
    """One line.

    Args:
        same: mean square of the moves of the size below which they tell no slope.
    """

    same: float
    _level: _Mean = field(default_factory=lambda: _Mean(LEVEL_S))
    _traffic: _Mean = field(default_factory=lambda: _Mean(TRAFFIC_S))
    _worked_s: float = 0.0
    """Decayed like the moves."""
    _moves: float = 0.0
    """Squares of moves of the size, times the seconds of work with it."""
    _answers: float = 0.0
    """Moves of the size times those of the time, times the same."""

    def see(self, size: float, time_s: float, seconds: float) -> None:
        """Add work: a size took `time_s`, for `seconds`."""
        self._level.add(size, time_s, seconds)
        self._traffic.add(size, time_s, seconds)
        keep = math.exp(-seconds / SLOPE_S)
        move, answer = size - self._traffic.size, time_s - self._traffic.time_s
        self._worked_s = self._worked_s * keep + seconds
        self._moves = self._moves * keep + move * move * seconds
        self._answers = self._answers * keep + move * answer * seconds

    @property
    def known(self) -> bool:
        """Whether anything was seen."""
        return self._worked_s > 0

    @property
    def size(self) -> float:
        """Mean size lately."""
        return self._level.size

    @property
    def time_s(self) -> float:
        """Mean time lately [s]."""
        return self._level.time_s

    @property
    def slope_s(self) -> float:
        """Seconds that one more costs; 0 = not known."""
        if self._moves <= self.same * self._worked_s:
            return 0.0
        return max(0.0, self._answers / self._moves)
