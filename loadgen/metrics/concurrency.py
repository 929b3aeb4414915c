"""How many requests were open at once: exact maximum, time average, and the longest stretch near the maximum."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.record import RequestRecord

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Concurrency:
    """A step function: `open_requests[i]` from `times_s[i]` to `times_s[i + 1]`, both of shape [steps]."""

    times_s: Floats
    open_requests: NDArray[np.int64]

    @property
    def peak(self) -> int:
        """Largest number of requests open at one moment."""
        return int(self.open_requests.max(initial=0))

    def mean(self) -> float:
        """Time average between the first send and the last end."""
        if len(self.times_s) < 2:
            return 0.0
        widths = np.diff(self.times_s)
        total = float(widths.sum())
        return float(widths @ self.open_requests[:-1]) / total if total > 0 else 0.0

    def at(self, times_s: Floats) -> NDArray[np.int64]:
        """Open requests right after each moment."""
        places = np.searchsorted(self.times_s, times_s, side="right") - 1
        return np.where(places >= 0, self.open_requests[np.maximum(places, 0)], 0) if len(self.times_s) else places * 0

    def longest_above(self, share: float) -> tuple[float, float]:
        """The longest stretch with at least `share` of the peak; (0, 0) if there were no requests.

        A request that ends and the one that takes its place are some microseconds apart; gaps of less than 1 % of the
        whole time do not break a stretch.
        """
        if len(self.times_s) < 2:
            return 0.0, 0.0
        high = self.open_requests >= share * self.peak
        patience_s = 0.01 * float(self.times_s[-1] - self.times_s[0])
        best = current = (0.0, 0.0)
        running = False
        for at in range(len(self.times_s) - 1):
            begin, end = float(self.times_s[at]), float(self.times_s[at + 1])
            if high[at]:
                current = (current[0], end) if running else (begin, end)
                running = True
            elif end - begin > patience_s:
                running = False
            best = max(best, current, key=lambda span: span[1] - span[0])
        return best


def concurrency(records: Sequence[RequestRecord]) -> Concurrency:
    """Of all requests that were sent, warm-up included: the server had those, too."""
    spans = [(record.started_s, record.ended_s) for record in records if record.started_s is not None]
    begins = np.array([begin for begin, _ in spans], dtype=np.float64)
    ends = np.array([end if end is not None else begin for begin, end in spans], dtype=np.float64)
    times = np.concatenate([begins, ends])
    steps = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
    order = np.lexsort((steps, times))  # at equal times an end comes before a begin
    return Concurrency(times[order], np.cumsum(steps[order]))
