"""How many micro-batches a rank's steps are cut into: measured, because neither one nor two is always the faster.

With two, attention of one half is computed while the rows of the other are with their experts; but weights are read
twice. For each bucket of step sizes both are tried in turns, then the faster one is kept for some steps. Each trial
with the same winner doubles that number.
"""

from dataclasses import dataclass, field
from statistics import median

TRIAL_PAIRS = 6
"""Steps of either kind in a trial. A median of six is not moved by a step during which the process had no core."""
LEAST_GAIN = 0.03
"""Two are used if they save this share of a step's time: less is within the noise of medians."""
FIRST_KEPT, MOST_KEPT = 256, 16_384
"""Steps between two trials. A first trial in 256 steps costs at most 1 % if two take 1.5 times as long as one."""


@dataclass(slots=True)
class _Bucket:
    """Steps of similar size."""

    choice: int = 1
    keep: int = FIRST_KEPT // 2
    left: int = 0
    """Steps until the next trial."""
    samples: dict[int, list[float]] = field(default_factory=lambda: {1: [], 2: []})
    """Of this trial, by number of micro-batches: time per row [s]."""

    def decide(self) -> None:
        one, two = median(self.samples[1]), median(self.samples[2])
        better = 2 if two < one * (1 - LEAST_GAIN) else 1
        self.keep = min(MOST_KEPT, 2 * self.keep) if better == self.choice else FIRST_KEPT
        self.choice, self.left = better, self.keep
        self.samples = {1: [], 2: []}


class MicroBatches:
    """The number for each step, from the times of earlier ones.

    Args:
        wanted: 1 or 2 = always that many; `auto` = the faster by size of step.
    """

    def __init__(self, wanted: int | str = "auto") -> None:
        self._fixed = 0 if wanted == "auto" else int(wanted)
        self._buckets: dict[int, _Bucket] = {}

    def choose(self, rows: int, sequences: int) -> int:
        """1 or 2. A sequence is never divided, so that a single one is one micro-batch."""
        if sequences < 2:
            return 1
        if self._fixed:
            return self._fixed
        bucket = self._buckets.setdefault(rows.bit_length(), _Bucket())
        if bucket.left:
            return bucket.choice
        return 1 if len(bucket.samples[1]) <= len(bucket.samples[2]) else 2

    def on_step(self, rows: int, sequences: int, count: int, seconds: float) -> None:
        """Note the time that a step in so many micro-batches took."""
        if self._fixed or sequences < 2:
            return
        bucket = self._buckets.setdefault(rows.bit_length(), _Bucket())
        if bucket.left:
            bucket.left -= 1
            return
        bucket.samples[count].append(seconds / rows)
        if min(map(len, bucket.samples.values())) >= TRIAL_PAIRS:
            bucket.decide()
