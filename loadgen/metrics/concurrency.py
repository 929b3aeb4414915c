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

    def mean(self, begin_s: float, end_s: float) -> float:
        """Time average over a window; 0 if it has no extent."""
        if len(self.times_s) < 2 or end_s <= begin_s:
            return 0.0
        widths = np.diff(np.clip(self.times_s, begin_s, end_s))
        return float(widths @ self.open_requests[:-1]) / (end_s - begin_s)

    def peak_between(self, begin_s: float, end_s: float) -> int:
        """Largest number of requests open at one moment of [begin_s, end_s)."""
        first = int(np.searchsorted(self.times_s, begin_s, side="right"))
        last = int(np.searchsorted(self.times_s, end_s, side="left"))
        at_begin = int(self.open_requests[first - 1]) if first else 0
        return int(self.open_requests[first:last].max(initial=at_begin))

    def at(self, times_s: Floats) -> NDArray[np.int64]:
        """Open requests right after each moment."""
        places = np.searchsorted(self.times_s, times_s, side="right") - 1
        return np.where(places >= 0, self.open_requests[np.maximum(places, 0)], 0) if len(self.times_s) else places * 0

    def longest_above(self, share: float) -> tuple[float, float]:
        """The longest stretch with at least `share` of the peak; (0, 0) if there were no requests.

        A slot's next request starts some microseconds after the previous one ended; a dip of less than 1 % of the
        whole time, in however many steps, does not break a stretch.
        """
        if self.peak < 1:
            return 0.0, 0.0
        begins, ends = self.times_s[:-1], self.times_s[1:]
        high = self.open_requests[:-1] >= share * self.peak
        begins, ends = begins[high], ends[high]
        patience_s = 0.01 * float(self.times_s[-1] - self.times_s[0])
        parted = begins[1:] - ends[:-1] > patience_s
        first = begins[np.concatenate([[True], parted])]
        last = ends[np.concatenate([parted, [True]])]
        best = int(np.argmax(last - first))
        return float(first[best]), float(last[best])


def concurrency(records: Sequence[RequestRecord]) -> Concurrency:
    """Concurrency over all requests that were sent, warm-up included: the server had those, too."""
    spans = [(record.started_s, record.ended_s) for record in records if record.started_s is not None]
    begins = np.array([begin for begin, _ in spans], dtype=np.float64)
    ends = np.array([end if end is not None else begin for begin, end in spans], dtype=np.float64)
    times = np.concatenate([begins, ends])
    steps = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
    order = np.lexsort((steps, times))  # at equal times an end precedes a start
    return Concurrency(times[order], np.cumsum(steps[order]))
