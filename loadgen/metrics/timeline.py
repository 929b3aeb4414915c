"""The run's time axis in bins: requests sent, requests ended, durations."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.metrics.definitions import BY_NAME, chunk_times, tokens_of
from loadgen.record import FAILURES, SUCCESSES, RequestRecord
from loadgen.result import TimelinePoint

# How many requests were open at once: exact maximum, time average, and the longest stretch near the maximum.

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


# The run's time axis in bins: requests sent, requests ended, durations.

_WIDTHS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)
_MOST_BINS = 120
_RECORDS_AT_ONCE = 4096
"""Number of records whose chunks are binned together: fewer calls, with bounded memory."""


def timeline(records: Sequence[RequestRecord], open_requests: Concurrency) -> list[TimelinePoint]:
    """Bins of a round width, at most 120 of them, from 0 to the last end; warm-up included, as the server saw it.

    The first and the last bin are longer than the others where the run fills less than half of one: a rate over some
    milliseconds would dwarf all others.
    """
    ends = [record.ended_s for record in records if record.ended_s is not None]
    if not ends:
        return []
    width_s = next((width for width in _WIDTHS_S if max(ends) / width <= _MOST_BINS), max(ends) / _MOST_BINS)
    count = max(1, math.ceil(max(ends) / width_s))
    edges = np.arange(count + 1, dtype=np.float64) * np.float64(width_s)
    edges[-1] = max(edges[-1], *ends)  # rounding must not lose the last end
    first_s = min((record.started_s for record in records if record.started_s is not None), default=0.0)
    edges, extents = _merged(edges, first_s, max(ends))
    sent = _histogram([r.started_s for r in records if r.started_s is not None], edges)
    finished = _histogram([r.ended_s for r in records if r.ended_s is not None and r.outcome in SUCCESSES], edges)
    failed = _histogram([r.ended_s for r in records if r.ended_s is not None and r.outcome in FAILURES], edges)
    running = open_requests.at(edges[1:])
    tokens = _tokens(records, edges)
    latencies = {name: _by_bin(records, name, edges) for name in ("ttft", "tpot")}
    return [
        TimelinePoint(
            t_s=float(edges[at]),
            width_s=extents[at][1] - extents[at][0],
            open_mean=open_requests.mean(*extents[at]),
            open_peak=open_requests.peak_between(*extents[at]),
            sent=int(sent[at]),
            finished=int(finished[at]),
            failed=int(failed[at]),
            running=int(running[at]),
            output_tokens=round(float(tokens[at])),
            ttft_p50_s=_percentile(latencies["ttft"][at], 50),
            ttft_p99_s=_percentile(latencies["ttft"][at], 99),
            tpot_p50_s=_percentile(latencies["tpot"][at], 50),
            tpot_p99_s=_percentile(latencies["tpot"][at], 99),
        )
        for at in range(len(extents))
    ]


def _merged(edges: Floats, first_s: float, last_s: float) -> tuple[Floats, list[tuple[float, float]]]:
    """Merge edge bins that the run barely covers, and compute the part of each bin between first send and last end.

    A rate over the whole width of a partly covered bin would be below the run's mean rate.
    """
    half_s = float(edges[1] - edges[0]) / 2
    inside = np.clip(edges, first_s, max(first_s, last_s))
    if len(edges) > 2 and inside[-1] - inside[-2] < half_s:
        edges, inside = np.delete(edges, -2), np.delete(inside, -2)
    while len(edges) > 2 and inside[1] - inside[0] < half_s:
        edges, inside = np.delete(edges, 1), np.delete(inside, 1)
    return edges, list(itertools.pairwise(inside.tolist()))


def _histogram(times: Sequence[float], edges: Floats) -> NDArray[np.int64]:
    """Times in each bin; the last bin includes its end."""
    return np.histogram(np.array(times, dtype=np.float64), edges)[0]


def _tokens(records: Sequence[RequestRecord], edges: Floats) -> Floats:
    """Output tokens in each bin: a chunk counts its request's mean per chunk, a whole response all at its end."""
    whole = [(r.ended_s, r.output_tokens) for r in records if not r.chunk_times and r.output_tokens and r.ended_s]
    total = np.zeros(len(edges) - 1)
    np.add.at(total, _places(np.array([ended_s for ended_s, _ in whole]), edges), [tokens for _, tokens in whole])
    streamed = [record for record in records if record.chunk_times]
    for start in range(0, len(streamed), _RECORDS_AT_ONCE):
        block = [(chunk_times(record), tokens_of(record)) for record in streamed[start : start + _RECORDS_AT_ONCE]]
        sizes = [len(times) for times, _ in block]
        shares = np.array([tokens for _, tokens in block]) / sizes
        places = _places(np.concatenate([times for times, _ in block]), edges)
        total += np.bincount(places, weights=np.repeat(shares, sizes), minlength=len(total))
    return total


def _places(times: Floats, edges: Floats) -> NDArray[np.int64]:
    """The bin of each time; the last bin includes its end."""
    return np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(edges) - 2)


def _by_bin(records: Sequence[RequestRecord], name: str, edges: Floats) -> list[list[float]]:
    """Values of a metric by the bin in which the request ended."""
    bins: list[list[float]] = [[] for _ in range(len(edges) - 1)]
    ended = [record for record in records if record.ended_s is not None and record.outcome in SUCCESSES]
    places = _places(np.array([record.ended_s for record in ended], dtype=np.float64), edges)
    for record, place in zip(ended, places.tolist(), strict=True):
        bins[place].extend(BY_NAME[name].values(record).tolist())
    return bins


def _percentile(values: list[float], percentile: float) -> float | None:
    return float(np.percentile(values, percentile)) if values else None
