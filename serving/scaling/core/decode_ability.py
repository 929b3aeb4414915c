"""How many sequences an instance decodes at once within the promised time per token, learned from its work.

The time per token is a line over the sequences at once (`learned_line.py`). The nearer an instance works to where the
promise ends, the less the slope matters; and that is where it counts.
"""

from dataclasses import dataclass, field

from serving.scaling.core.learned_line import LearnedLine

TPOT_SPREAD = 1.06
"""The slowest of a hundred requests takes so much longer per token than the mean: fewer of its drafts are accepted, and
its batch was fuller. Measured in virtual time with the ServeGen R1 day: 1.05 to 1.08 while the load is steady."""
CROWD_SPREAD = 1.04
"""The same of a crowd that stays no longer than an instance takes to start: the rest of a life makes up for it."""
SAME_BATCH = 0.25
"""Mean square of the moves below which they tell no slope [squared sequences]."""
FEWER = 0.5
"""Of the batch that there is: what fits is not said to be less, however slow tokens come. A line that is drawn further
would say anything, and with half as many it is drawn anew."""


@dataclass(slots=True)
class DecodeAbility:
    """Capacity of the instances of one pool, which are alike."""

    _line: LearnedLine = field(default_factory=lambda: LearnedLine(SAME_BATCH))

    def see(self, sequences: float, token_s: float, seconds: float) -> None:
        """An instance decoded so many sequences at once, each waiting `token_s` for a token, for `seconds` of work."""
        self._line.see(sequences, token_s, seconds)

    def most(self, promise_s: float, configured: float, spread: float = TPOT_SPREAD) -> float:
        """Sequences that one instance can decode at once so that 99 of 100 requests keep a promised time per token.

        Args:
            configured: that it may hold; the most there is, and the answer while nothing is known.
            spread: slowest of a hundred requests / mean.
        Returns: at least 1.
        """
        if not self._line.known:
            return configured
        batch, token_s = self._line.size, self._line.time_s
        limit_s, slope = promise_s / spread, self._line.slope_s
        if slope > 0:
            best = batch + (limit_s - token_s) / slope
        else:  # one batch size so far: within the promise nothing says where it ends
            best = configured if token_s <= limit_s else batch * limit_s / token_s
        return min(configured, max(1.0, FEWER * batch, best))
