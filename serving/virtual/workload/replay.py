"""Replay of a trace: a stretch of it, repeated, sharded and scaled, as a stream that can be read any number of times.

    read -> stretch -> assign shards -> [repeat: own identities, later] -> limit -> own shard -> scale -> values

A small trace is read once and kept as columns; a large one is read again in each pass, one batch at a time.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from serving.errors import ConfigError
from serving.virtual.workload.columns import LARGEST_ID, Columns, IntArray, TraceError, TraceRequest
from serving.virtual.workload.reshaping import Scaling

_SPREAD = 0x9E37_79B9_7F4A_7C15
"""Odd, so that multiples of it differ modulo 2^63. Source: the golden ratio, after Knuth."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The part of a trace that is simulated, in the trace's own time [s]: arrivals in [start, end)."""

    start_s: float = 0.0
    end_s: float = math.inf

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        if not 0 <= self.start_s < self.end_s:
            raise ConfigError(
                f"from {self.start_s:g} s to {self.end_s:g} s is no stretch of a trace; it starts at 0 or later"
            )

    def of(self, batches: Iterable[Columns]) -> Iterator[Columns]:
        """The requests of the stretch, with arrivals relative to its start; stops reading after its end."""
        for columns in batches:
            if self.start_s == 0 and self.end_s == math.inf:
                yield columns
                continue
            first, last = np.searchsorted(columns.arrival_s, (self.start_s, self.end_s))
            kept = columns.take(np.arange(first, last))
            yield replace(kept, arrival_s=kept.arrival_s - self.start_s)
            if last < len(columns):
                return


@dataclass(slots=True)
class _Pass:
    """Facts of the first pass through the trace, for the later passes."""

    requests: int = 0
    last_s: float = 0.0
    largest_id: int = -1

    def see(self, columns: Columns) -> None:
        """Update the facts with a batch of requests."""
        if len(columns):
            self.requests += len(columns)
            self.last_s = float(columns.arrival_s[-1])
            self.largest_id = max(self.largest_id, int(columns.blocks.max(initial=-1)))

    def period_s(self, stretch: Stretch) -> float:
        """Time between the starts of two passes [s]: the stretch if it has an end, else last arrival plus mean gap."""
        if stretch.end_s < math.inf:
            return stretch.end_s - stretch.start_s
        return self.last_s * self.requests / (self.requests - 1) if self.requests > 1 else self.last_s + 1.0


@dataclass(frozen=True, slots=True)
class Portion:
    """Number of passes through a trace, and the part of their requests that is taken.

    Attributes:
        repeat: number of passes. limit: requests of all passes and shards together.
        shard: (index, number of shards). Each pass shifts every request by one shard, to even out uneven shards.
    """

    repeat: int = 1
    limit: int | None = None
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        which, shards = self.shard
        if not 0 <= which < shards:
            raise ConfigError(f"shard {which} of {shards}: shards count from 0 to one less than there are")
        if self.repeat < 1 or (self.limit is not None and self.limit < 1):
            raise ConfigError(f"repeat {self.repeat}, limit {self.limit}: at least 1 each")

    def places(self, columns: Columns, turn: int, left: float) -> IntArray | None:
        """Positions of the requests that are taken, of at most `left`; None = all. [taken] int64, ascending."""
        count = int(min(len(columns), left))
        if columns.shard is None:
            return np.arange(count) if count < len(columns) else None
        which, shards = self.shard
        return np.flatnonzero(columns.shard[:count] == (which - turn) % shards)


@dataclass(frozen=True, slots=True)
class Replay:
    """Stream of requests. Each iteration starts from the beginning and yields the same requests.

    Attributes:
        label: name of the trace in error messages. batches: one pass through the stretch, with shards assigned.
        block_tokens: tokens per id of the trace, before scaling; None = the trace has no ids.
    """

    label: str
    batches: Callable[[], Iterable[Columns]]
    block_tokens: int | None
    stretch: Stretch = field(default_factory=Stretch)
    scaling: Scaling = field(default_factory=Scaling)
    portion: Portion = field(default_factory=Portion)

    def __iter__(self) -> Iterator[TraceRequest]:
        """Raises: TraceError if the stretch has no request, and the errors of reading the trace."""
        for columns, turn, first, places in self._batches():
            taken = columns if places is None else columns.take(places)
            again = _again(taken, turn, first, self.stretch) if turn else taken
            yield from self.scaling.apply(again, self.block_tokens).requests()

    def measure(self) -> tuple[int, float]:
        """Number of requests of this shard, and the arrival of the last one [s]. Reads the whole trace.

        Raises: TraceError as iteration does.
        """
        count, last_s = 0, 0.0
        for columns, turn, first, places in self._batches():
            arrivals = columns.arrival_s if places is None else columns.arrival_s[places]
            if len(arrivals):
                count += len(arrivals)
                last_s = float(arrivals[-1]) + (turn * first.period_s(self.stretch) if turn else 0.0)
        return count, last_s / self.scaling.rate

    def ends_s(self) -> float | None:
        """End of the last pass [s]; None if it is not known without reading the trace."""
        if self.stretch.end_s == math.inf:
            return None
        return (self.stretch.end_s - self.stretch.start_s) * self.portion.repeat / self.scaling.rate

    def _batches(self) -> Iterator[tuple[Columns, int, "_Pass", IntArray | None]]:
        """Batches of all passes: requests in the trace's time, index of the pass, facts of the first pass, positions
        that are taken.
        """
        left = math.inf if self.portion.limit is None else self.portion.limit
        first = _Pass()
        for turn in range(self.portion.repeat):
            for columns in self.batches():
                if not turn:
                    first.see(columns)
                yield columns, turn, first, self.portion.places(columns, turn, left)
                left -= len(columns)
                if left <= 0:
                    return
            if not first.requests:
                end = "its end" if self.stretch.end_s == math.inf else f"{self.stretch.end_s:g} s"
                raise TraceError(
                    f"{self.label}: no request arrives from {self.stretch.start_s:g} s to {end}; choose another stretch"
                )


def _again(columns: Columns, turn: int, first: _Pass, stretch: Stretch) -> Columns:
    """The requests of a later pass: shifted in time, with ids that no other pass has.

    Sequential ids are shifted by their count. 63-bit hashes leave no range for that; they are shifted by multiples of a
    spreading constant, so that collisions with ids of another pass are as rare as hash collisions.
    """
    step = first.largest_id + 1
    room = step * (turn + 1) <= LARGEST_ID
    if room:
        blocks = columns.blocks + np.int64(step * turn)
    else:
        moved = columns.blocks.astype(np.uint64) + np.uint64(_SPREAD * turn % 2**63)
        blocks = (moved & np.uint64(LARGEST_ID)).astype(np.int64)
    return replace(columns, blocks=blocks, arrival_s=columns.arrival_s + turn * first.period_s(stretch))
