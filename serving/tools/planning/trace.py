"""Which trace is planned for, as a value that other processes can open for themselves."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.virtual.workload.columns import RequestStream, TraceError, TraceRequest
from serving.virtual.workload.open import open_workload

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
        """Read it. Raises: TraceError, also for a trace of conversations, whose requests have no times of their own."""
        found = open_workload(
            self.path, rate=self.rate, limit=self.limit, start_s=self.start_s, duration_s=self.duration_s,
            seed=self.seed, block_tokens=self.block_tokens, columns=self.columns,
        )  # fmt: skip
        if found.jobs is not None:
            raise TraceError(f"{self.path}: a plan needs the requests' own times; simulate conversations instead")
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
        workload, _ = opened(self)
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


# Demand of a workload, read once: lengths, and what a cache without limits would save of each prompt.

READ_AT_MOST = 200_000
"""Requests that bounds are computed from."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlanDemand:
    """Requests in order of arrival; each array is [requests] int64.

    Attributes:
        duration_s: from 0 to the last arrival that was read.
        reused: prompt tokens in leading blocks that an earlier prompt had; at least one token is always computed.
        complete: whether all requests were read.
    """

    duration_s: float
    prompt: Ints
    output: Ints
    reused: Ints
    complete: bool

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def uncached(self) -> Ints:
        """Prompt tokens that have to be computed even with an ideal cache."""
        return self.prompt - self.reused

    @property
    def attended(self) -> float:
        """Mean number of tokens that each of those attends to."""
        return attended_by_each(self.uncached, self.reused)


def attended_by_each(new: Ints, reused: Ints) -> float:
    """Tokens that a computed prompt token attends to, in the mean over prompts.

    Args:
        new, reused: tokens of each prompt that are computed, and that a cache has. [requests] int64
    """
    total = float(new.sum())
    return float((new * (reused + new / 2)).sum()) / total if total else 0.0


def demand(workload: RequestStream, *, reuse: bool, most: int = READ_AT_MOST) -> PlanDemand:
    """Read a workload.

    Args:
        reuse: whether blocks are reused at all.
    Raises: TraceError if there is no request in it.
    Effects: one pass through the workload.
    """
    seen: set[tuple[int, int]] = set()
    prompts: list[int] = []
    outputs: list[int] = []
    reused: list[int] = []
    last_s = 0.0
    stream = iter(workload.requests)
    for request in islice(stream, most):
        last_s = request.arrival_s
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
        known = 0
        if reuse:
            for key in enumerate(request.blocks):
                if key not in seen:
                    break
                known += 1
            seen.update(list(enumerate(request.blocks))[known:])
        reused.append(min(known * workload.block_tokens, request.prompt_tokens - 1))
    if not prompts:
        raise TraceError(f"{workload.name}: it has no requests to plan for")
    complete = next(stream, None) is None
    prompt, output, again = (np.array(column, np.int64) for column in (prompts, outputs, reused))
    return PlanDemand(last_s, prompt, output, again, complete)
