"""How many sequences an instance decodes at once within the promised time per token, learned from its work.

    time per token                       a line
      |                  ...·'''        level: of the last minute of work; it moves with the traffic's contexts
      |        ...·''' <- now           slope: how both moved together within minutes, over hours; what moves
      +-------------------------                slower is traffic that changed, and says nothing of the slope
            sequences at once

The nearer an instance works to where the promise ends, the less the slope matters; and that is where it counts.
"""

import math
from dataclasses import dataclass, field

LEVEL_S = 60.0
"""Time constant of where on the line the pool is [s of an instance's work, as all of them here]."""
TRAFFIC_S = 600.0
"""Time constant of what is taken for the traffic's own: only moves against it tell of the slope."""
SLOPE_S = 7200.0
"""Time constant of the slope."""
TPOT_SPREAD = 1.06
"""The slowest of a hundred requests takes so much longer per token than the mean: fewer of its drafts are accepted, and
its batch was fuller. Measured in virtual time with the ServeGen R1 day: 1.05 to 1.08 while the load is steady."""
CROWD_SPREAD = 1.04
"""The same of a crowd that stays no longer than an instance takes to start: the rest of a life makes up for it."""
SAME_BATCH = 0.25
"""Mean square of the moves below which they tell no slope [squared sequences]."""
EXPECTED_BATCH, EXPECTED_S = 0.1, 600.0
"""A slope that was expected counts as one measured while the batch moved by this part of itself, for so long."""
FEWER = 0.5
"""Of the batch that there is: what fits is not said to be less, however slow tokens come. A line that is drawn further
would say anything, and with half as many it is drawn anew."""


@dataclass(slots=True)
class _Mean:
    """Means of both quantities, with forgetting."""

    constant_s: float
    sequences: float = 0.0
    token_s: float = 0.0
    _weight: float = 0.0

    def add(self, sequences: float, token_s: float, seconds: float) -> None:
        self._weight = self._weight * math.exp(-seconds / self.constant_s) + seconds
        gain = seconds / self._weight
        self.sequences += gain * (sequences - self.sequences)
        self.token_s += gain * (token_s - self.token_s)


@dataclass(frozen=True, slots=True)
class Expected:
    """Load by a cost model, before anything was measured.

    Args:
        most: sequences at once within the promise.
        slope_s: time per token that one sequence more costs [s].
    """

    most: float
    slope_s: float


@dataclass(slots=True)
class DecodeAbility:
    """Capacity of the instances of one pool, which are alike.

    Args:
        expected: None = nothing is known beforehand.
    """

    expected: Expected | None = None
    _level: _Mean = field(default_factory=lambda: _Mean(LEVEL_S))
    _traffic: _Mean = field(default_factory=lambda: _Mean(TRAFFIC_S))
    _worked_s: float = 0.0
    """Decayed like the moves."""
    _moves: float = 0.0
    """Squares of moves of the batch [sequences^2 s]."""
    _answers: float = 0.0
    """Moves of the batch times those of the time per token [sequences s^2]."""

    def see(self, sequences: float, token_s: float, seconds: float) -> None:
        """An instance decoded so many sequences at once, each waiting `token_s` for a token, for `seconds` of work."""
        self._level.add(sequences, token_s, seconds)
        self._traffic.add(sequences, token_s, seconds)
        keep = math.exp(-seconds / SLOPE_S)
        move, answer = sequences - self._traffic.sequences, token_s - self._traffic.token_s
        self._worked_s = self._worked_s * keep + seconds
        self._moves = self._moves * keep + move * move * seconds
        self._answers = self._answers * keep + move * answer * seconds

    def most(self, promise_s: float, configured: float, spread: float = TPOT_SPREAD) -> float:
        """Sequences that one instance can decode at once so that 99 of 100 requests keep a promised time per token.

        Args:
            configured: that it may hold; the most there is, and the answer while nothing is known.
            spread: slowest of a hundred requests / mean.
        Returns: at least 1.
        """
        if self._worked_s <= 0:
            return min(configured, self.expected.most) if self.expected is not None else configured
        batch, token_s = self._level.sequences, self._level.token_s
        limit_s, slope = promise_s / spread, self._slope()
        if slope > 0:
            best = batch + (limit_s - token_s) / slope
        else:  # one batch size so far: within the promise nothing says where it ends
            best = configured if token_s <= limit_s else batch * limit_s / token_s
        return min(configured, max(1.0, FEWER * batch, best))

    def _slope(self) -> float:
        """Seconds per token and sequence; 0 = not known."""
        if self.expected is not None:
            weight = (EXPECTED_BATCH * max(1.0, self._level.sequences)) ** 2 * EXPECTED_S
            return max(
                (self._answers + self.expected.slope_s * weight) / (self._moves + weight), self.expected.slope_s / 2
            )
        if self._moves <= SAME_BATCH * self._worked_s:
            return 0.0
        return max(0.0, self._answers / self._moves)
