"""Which trace is planned for, as a value that other processes can open for themselves."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from serving.virtual.workload.errors import TraceError
from serving.virtual.workload.open import open_workload
from serving.virtual.workload.request import RequestStream, TraceRequest

_PARTS = 6
"""The short stretch is about this part of the trace, but not shorter than `_LEAST_S`."""
_MINUTE_S = 60.0
_LEAST_S = 120.0
"""In simulated time: queues need so long to show that they grow."""


@dataclass(frozen=True, slots=True)
class TraceChoice:
    """A trace and how it is read; times are the trace's own. See `open_workload`, of a closed loop `RequestStream`."""

    path: Path
    rate: float = 1.0
    limit: int | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    seed: int = 0
    block_tokens: int | None = None
    concurrency: int | None = None
    columns: str | None = None

    def open(self) -> RequestStream:
        """Read it. Raises: TraceError."""
        found = open_workload(
            self.path, rate=self.rate, limit=self.limit, start_s=self.start_s, duration_s=self.duration_s,
            seed=self.seed, block_tokens=self.block_tokens, columns=self.columns,
        )  # fmt: skip
        return found if self.concurrency is None else found.closed(self.concurrency)

    def faster(self, factor: float) -> "TraceChoice":
        """The same requests at another rate; in a closed loop, with another number at a time."""
        if self.concurrency is not None:
            return replace(self, concurrency=max(1, round(self.concurrency * factor)))
        return self if factor == 1 else replace(self, rate=self.rate * factor)

    def busiest(self, parts: int = _PARTS) -> "TraceChoice":
        """Part of the trace with the most tokens, about one of this many parts; the trace itself if it is too short
        for that.

        Raises: TraceError if there is no request in it.
        Effects: reads it.
        """
        workload = self.open()
        rows = [(one.arrival_s, one.prompt_tokens + one.output_tokens) for one in workload.requests]
        if not rows:
            raise TraceError(f"{workload.name}: it has no requests to plan for")
        times, tokens = np.array([row[0] for row in rows]), np.array([float(row[1]) for row in rows])
        whole_s = float(times[-1])
        length_s = max(whole_s / parts, _LEAST_S)
        if length_s > whole_s / 2:
            return self
        starts = np.arange(0.0, whole_s - length_s + 1e-9, length_s / 4)
        sums = np.concatenate(([0.0], np.cumsum(tokens)))
        first, last = np.searchsorted(times, starts), np.searchsorted(times, starts + length_s)
        busiest = float(starts[int(np.argmax(sums[last] - sums[first]))])
        start_s = self.start_s + round(busiest * self.rate, 3)
        return replace(self, start_s=start_s, duration_s=round(length_s * self.rate, 3), limit=None)


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Facts for a simulation: when it can end, and when a loss hurts most.

    Attributes:
        last_s: when the last request arrives. worst_s: middle of the minute with the most tokens.
    """

    requests: int
    last_s: float
    longest_output: int
    worst_s: float


@lru_cache(maxsize=4)
def opened(trace: TraceChoice) -> tuple[RequestStream, TraceFacts]:
    """A trace, read once in each process. Raises: TraceError."""
    workload = trace.open()
    return workload, _facts(workload.requests)


def _facts(requests: Iterable[TraceRequest]) -> TraceFacts:
    count, last_s, longest = 0, 0.0, 1
    minutes: Counter[int] = Counter()
    for request in requests:
        count, last_s, longest = count + 1, request.arrival_s, max(longest, request.output_tokens)
        minutes[int(last_s / _MINUTE_S)] += request.prompt_tokens + request.output_tokens
    worst = max(minutes, key=lambda minute: (minutes[minute], -minute), default=0)
    return TraceFacts(count, last_s, longest, (worst * _MINUTE_S + min((worst + 1) * _MINUTE_S, last_s)) / 2)
