"""Cost of a draft token: measured decode step time as a linear function of draft tokens per sequence.

    time of a step = base * (1 + share * draft tokens per sequence)

There is one line for each size of batch, in sizes of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... sequences: a draft token is
nearly free where a step is memory-bound, and costs as much as a sequence where it is compute-bound. Only pure decode
steps are measured.

Noise in measured times is one-sided: other load only makes a step longer. Steps are therefore grouped into levels of
similar drafts per sequence, 0, 1/2, 1 ...; each level keeps its last few steps and is represented by their lower
quartile; the line goes through the levels by least squares.
"""

from collections import deque

_KEPT = 12
"""Steps that a level keeps."""
_ENOUGH = 3
"""Steps below which a level is ignored."""
_REFIT_STEPS = 8
"""Steps between refits of a known line: sorting times for every step would cost as much as the drafts."""
_STALE = 320
"""A level not observed for this many steps of its batch size (five trials) is ignored."""


class _Level:
    """The latest steps with about the same number of draft tokens per sequence."""

    __slots__ = ("guesses", "seen", "steps")

    def __init__(self) -> None:
        self.steps: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """Time [s] and draft tokens per sequence of each step."""
        self.seen = 0

    def point(self) -> tuple[float, float]:
        """Mean draft tokens per sequence, and the time of the level [s]."""
        times = sorted(time_s for time_s, _ in self.steps)
        return sum(guesses for _, guesses in self.steps) / len(self.steps), times[len(times) // 4]


class _Line:
    """Measurements of one batch size."""

    __slots__ = ("_levels", "_steps", "share")

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._steps = 0
        self.share: float | None = None
        """Cost of one draft token per sequence as a share of a step without; None while fewer than two levels are
        usable.
        """

    def add(self, guesses: float, elapsed_s: float) -> None:
        self._steps += 1
        level = self._levels.get(round(2.0 * guesses))
        if level is None:
            level = self._levels[round(2.0 * guesses)] = _Level()
        if self._steps - level.seen >= _STALE:
            level.steps.clear()
        level.steps.append((elapsed_s, guesses))
        level.seen = self._steps
        if self._steps % _REFIT_STEPS == 0 or (self.share is None and len(self._levels) > 1):
            self.share = self._fitted()

    def _fitted(self) -> float | None:
        points = [
            level.point()
            for level in self._levels.values()
            if len(level.steps) >= _ENOUGH and self._steps - level.seen < _STALE
        ]
        if len(points) < 2:
            return None
        mean_x, mean_t = (sum(values) / len(points) for values in zip(*points, strict=True))
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        slope = max(0.0, sum((x - mean_x) * (t - mean_t) for x, t in points) / spread)
        # Noise may tilt a line so far that a step without drafts would take no time: a tenth of the mean is kept.
        return slope / max(mean_t - slope * mean_x, 0.1 * mean_t) if mean_t > 0.0 else None


class StepCost:
    """Measured cost of draft tokens. Mutable; depends only on its observations."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}

    def observe(self, sequences: int, guesses: float, elapsed_s: float) -> None:
        """Count one step that only decoded.

        Args:
            sequences: number of sequences in the step, at least one.
            guesses: over all of them, the mean of the draft tokens verified and those made for the next step.
        """
        size = _size(sequences)
        line = self._lines.get(size)
        if line is None:
            line = self._lines[size] = _Line()
        line.add(guesses / sequences, elapsed_s)

    def share(self, sequences: int) -> float | None:
        """Cost of one draft token per sequence, as a share of a step without drafts.

        Returns: that of the nearest batch size with enough measurements; None if there is none.
        """
        size = _size(sequences)
        line = self._lines.get(size)
        if line is not None and line.share is not None:
            return line.share
        known = [other for other, line in self._lines.items() if line.share is not None]
        if not known:
            return None
        nearest = min(known, key=lambda other: (max(other, size) / min(other, size), other))
        return self._lines[nearest].share

    def known(self, sequences: int) -> bool:
        """Whether it was measured for this batch size."""
        line = self._lines.get(_size(sequences))
        return line is not None and line.share is not None


def _size(sequences: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: steps in one class are similar."""
    octave = 1 << (sequences - 1).bit_length()
    return octave * 3 // 4 if 2 < sequences <= octave * 3 // 4 else octave
