"""Number of draft tokens per sequence, from measured acceptance and measured cost.

Speculation never changes a token. Each position is sampled with its own random number, uniform(seed, position), and a
draft token is accepted only if it equals the sample: the output is that of a run without drafts, greedy or sampled.
Rejection sampling would give the same distribution: a draft is one certain token, so this rule accepts it with the
model's probability and otherwise samples from the rest. This module only affects speed.

The rule. Let q_j be the probability that a sequence's draft token at position j is accepted if all before it were
(counted, see `Acceptance`). The j-th draft token then adds `gain_j = q_1 * ... * q_j` tokens to a step on average. One
more draft token costs a share `c / n` of a step without drafts, with n sequences (measured, see `StepCost`). The rate
of a step with the drafts chosen so far is `tokens / time = (n + sum of gains) / (1 + c / n * drafts)`. Gains of all
sequences are taken from the largest down, as long as each adds to the rate: `gain > c / n * rate`. Because gains of one
sequence only fall, this takes its first k draft tokens, and no other choice has a higher rate.

Example: one sequence, q = 0.8, 0.6, 0.5, hence gains 0.8, 0.48, 0.24; a draft token costs c = 0.25 of a step.

    drafts    tokens   time   rate    next gain against 0.25 * rate
       0       1.00    1.00   1.00    0.80 > 0.25   take it
       1       1.80    1.25   1.44    0.48 > 0.36   take it
       2       2.28    1.50   1.52    0.24 < 0.38   stop: two draft tokens, 1.52 times as fast as none

With 32 sequences that already saturate the device a draft token may cost as much as a sequence, c = 0.9: the first gain
0.8 is below 0.9 * 1, so no tokens are drafted.

Trials. To keep measuring both cases, the last two of every 64 decode steps do the opposite: a sequence without drafts
gets one, and its earlier counts are halved; a sequence with drafts gets none. Until the cost of a batch size is first
known, trials run every 8 steps. An unknown cost counts as zero. All of this depends only on recorded inputs, so a
replay makes the same decisions.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from serving.values.sequence import SamplingParams

_TRIAL_PERIOD = 64
_EARLY_PERIOD = 8
_TRIAL_STEPS = 2
"""Draft tokens are made in one step and verified in the next, so a trial takes two steps."""

_MEMORY = 0.95
"""Factor on a sequence's counts per further observation: a memory of twenty."""
_COMMON_MEMORY = 0.998
"""The same for the counts of all sequences together: a memory of five hundred."""
_COMMON_WEIGHT = 4.0
"""Weight of the common acceptance, in observations, relative to a sequence's own."""
_FIRST_TRIES, _FIRST_HITS = 2.0, 1.6
"""Prior before any observation: high enough to be tried, and soon outweighed.

Source: DeepSeek-V3 reports 85 to 90 % for its second token (technical report, 5.4.3)."""


def speculates(sampling: SamplingParams) -> bool:
    """Whether draft tokens are ever used for a sequence.

    Only if sampling needs just the logits of its position. Penalties depend on the previous tokens, which are drafts
    themselves; biases, token lists and log-probabilities need whole rows of logits, and k + 1 rows would cost more than
    they gain. Such a sequence decodes one token at a time.
    """
    return (
        sampling.logprobs is None
        and not (sampling.logit_bias or sampling.allowed_token_ids or sampling.bad_words)
        and sampling.repetition_penalty == 1
        and sampling.presence_penalty == 0
        and sampling.frequency_penalty == 0
    )


def speculates_now(sampling: SamplingParams, output_tokens: int) -> bool:
    """Whether to draft now: until `min_tokens` are generated, hidden stop tokens prevent plain sampling."""

    return (output_tokens >= sampling.min_tokens or not sampling.stop_token_ids) and speculates(sampling)


class DraftSource(Protocol):
    """Gains of one sequence's draft tokens, known before they are fed."""

    gains: tuple[float, ...]
    """Mean number of tokens that each further draft token adds to a step, decreasing."""

    def doubt(self) -> None:
        """Give less weight to what was observed, because it is old."""
        ...


class Acceptance:
    """Acceptance of one sequence's draft tokens by position; each counts only if those before it were accepted."""

    __slots__ = ("_common", "gains", "hits", "tries")

    def __init__(self, common: "Acceptance | None", positions: int) -> None:
        """
        Args:
            common: acceptance of all sequences, the prior for this one; None = this is the common one.
        """
        self._common = common
        first_tries, first_hits = (_FIRST_TRIES, _FIRST_HITS) if common is None else (0.0, 0.0)
        self.tries = [first_tries] * positions
        self.hits = [first_hits] * positions
        self.gains: tuple[float, ...] = ()
        """Mean number of tokens that each further draft token adds to a step; empty for the common acceptance."""
        if common is not None:
            self._settle()

    def observe(self, drafted: int, accepted: int) -> None:
        """Count one verification: the first `accepted` of `drafted` tokens were accepted."""
        memory = _COMMON_MEMORY if self._common is None else _MEMORY
        for position in range(min(drafted, accepted + 1)):
            self.tries[position] = self.tries[position] * memory + 1.0
            self.hits[position] = self.hits[position] * memory + (position < accepted)
        if self._common is not None:
            self._settle()

    def doubt(self) -> None:
        """Halve the counts, because they are old. Effects: increases the weight of the common acceptance."""
        self.tries = [0.5 * tries for tries in self.tries]
        self.hits = [0.5 * hits for hits in self.hits]
        self._settle()

    def _settle(self) -> None:
        common = self._common
        assert common is not None, "the common acceptance has no gains of its own"
        gain, gains = 1.0, []
        for tries, hits, all_tries, all_hits in zip(self.tries, self.hits, common.tries, common.hits, strict=True):
            gain *= (hits + _COMMON_WEIGHT * all_hits / all_tries) / (tries + _COMMON_WEIGHT)
            gains.append(gain)
        self.gains = tuple(gains)


class Speculation:
    """One engine's number of draft tokens. Mutable; no clock, no randomness: a replay gives the same choices."""

    def __init__(self, most: int, unknown_share: float = 0.0) -> None:
        """
        Args:
            most: maximum number of draft tokens per sequence and step, at least one.
            unknown_share: cost of a draft token, as in `least_gain`, until it is measured.
        """
        self.most = most
        self._unknown_share = unknown_share
        self._common = Acceptance(None, most)
        self._cost = StepCost()
        self._steps = 0
        self._trial = False
        self._least_gain = 0.0

    def newcomer(self) -> Acceptance:
        """Acceptance of a sequence without observations."""
        return Acceptance(self._common, self.most)

    def weigh(self, sequences: int, candidates: Sequence[DraftSource]) -> None:
        """Choose for one decode step; `guesses` then returns the choice for each sequence.

        Args:
            sequences: number of sequences that the step decodes.
            candidates: those of them that may speculate.
        Effects: counts the step, which may be a trial.
        """
        self._steps += 1
        period = _TRIAL_PERIOD if self._cost.known(sequences) else _EARLY_PERIOD
        self._trial = self._steps % period >= period - _TRIAL_STEPS
        self._least_gain = least_gain(sequences, self._share(sequences), [c.gains for c in candidates])

    def net_gain(self, sequences: int, candidates: Sequence[DraftSource]) -> float:
        """Tokens that draft tokens add to a step of this many sequences, less those of the time that they cost."""
        return best_rate(sequences, self._share(sequences), [c.gains for c in candidates]) - sequences

    def _share(self, sequences: int) -> float:
        share = self._cost.share(sequences)
        return self._unknown_share if share is None else share

    def guesses(self, source: DraftSource) -> int:
        """Number of draft tokens for a sequence in this step.

        Effects: halves the counts of a sequence that drafts as a trial.
        """
        count = 0
        for gain in source.gains:
            if gain <= self._least_gain:
                break
            count += 1
        if not self._trial:
            return count
        if count:
            return 0
        source.doubt()
        return 1

    def observe_drafts(self, acceptance: Acceptance, drafted: int, accepted: int) -> None:
        """Count a verification."""
        self._common.observe(drafted, accepted)
        acceptance.observe(drafted, accepted)

    def observe_step(self, sequences: int, verified: int, made: int, elapsed_s: float) -> None:
        """Count a step that only decoded.

        Args:
            verified: draft tokens fed, over all sequences.
            made: draft tokens that it returned for the next step.
        """
        self._cost.observe(sequences, 0.5 * (verified + made), elapsed_s)


def least_gain(sequences: int, share: float, gains: Sequence[Sequence[float]]) -> float:
    """The gain that a draft token must exceed, by the rule above.

    Args:
        share: cost of one draft token per sequence, as a share of a step without drafts.
        gains: of each sequence that may speculate, decreasing.
    """
    return share / sequences * best_rate(sequences, share, gains)


def best_rate(sequences: int, share: float, gains: Sequence[Sequence[float]]) -> float:
    """Most tokens per time of a step without draft tokens, by the rule above. Args: as for `least_gain`."""
    cost = share / sequences
    tokens, time_s = float(sequences), 1.0
    for gain in sorted((gain for own in gains for gain in own), reverse=True):
        if gain * time_s <= cost * tokens:
            break
        tokens += gain
        time_s += cost
    return tokens / time_s


# Cost of a draft token: measured decode step time as a linear function of draft tokens per sequence.
#
#     time of a step = base * (1 + share * draft tokens per sequence)
#
# There is one line for each size of batch, in sizes of 1, 2, 3, 4, 6, 8, 12, 16, 24 ... sequences: a draft token is
# nearly free where a step is memory-bound, and costs as much as a sequence where it is compute-bound. Only pure decode
# steps are measured.
#
# Noise in measured times is one-sided: other load only makes a step longer. Steps are therefore grouped into levels of
# similar drafts per sequence, 0, 1/2, 1 ...; each level keeps its last few steps and is represented by their lower
# quartile; the line goes through the levels by least squares.

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
