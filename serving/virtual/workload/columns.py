"""Many requests as columns: the form in which traces are read, scaled, repeated and sharded.

One NumPy operation then treats thousands of requests; they become values one by one only where the simulation takes
them. Prefix ids of all requests stand in one array, request after request.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat

import numpy as np
import numpy.typing as npt

from serving.virtual.workload.request import TraceRequest

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Row = tuple[float, int, int, Sequence[int]]
"""arrival [s], prompt tokens, output tokens, prefix ids."""

BATCH = 8192
"""Requests that are columns together. Large enough that per-batch work vanishes, small enough to stay in the caches."""

LARGEST_ID = 2**63 - 1
"""What a column holds; ids that are hashes themselves are cut to 63 bits by those who publish them."""

# As TraceRequest._make, without a Python frame for each request.
_as_request = partial(tuple.__new__, TraceRequest)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Requests in order of arrival.

    Attributes:
        arrival_s: [requests] float64.
        prompt_tokens, output_tokens: [requests] int64.
        blocks: [ids of all requests] int64.
        ends: [requests] int64: where in `blocks` each request's ids end.
        shard: [requests] int64: which part of a sharded simulation takes it; None = not sharded.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    blocks: IntArray
    ends: IntArray
    shard: IntArray | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def starts(self) -> IntArray:
        """[requests] int64: where in `blocks` each request's ids begin."""
        return np.concatenate((np.zeros(min(1, len(self)), np.int64), self.ends[:-1]))

    def requests(self) -> Iterator[TraceRequest]:
        """The same as values."""
        return map(
            _as_request,
            zip(
                self.arrival_s.tolist(),
                self.prompt_tokens.tolist(),
                self.output_tokens.tolist(),
                self.id_tuples(),
                repeat(""),  # a trace file names no keys
                strict=False,
            ),
        )

    def id_tuples(self) -> Iterator[tuple[int, ...]]:
        """Each request's ids; endless empty ones if there are none at all."""
        if not len(self.blocks):
            return repeat(())
        ids = tuple(self.blocks.tolist())
        return map(ids.__getitem__, map(slice, self.starts.tolist(), self.ends.tolist()))

    def take(self, index: IntArray) -> "Columns":
        """Some of them.

        Args:
            index: [taken] int64, places in these columns, ascending.
        """
        starts, ends = self.starts[index], self.ends[index]
        sizes = ends - starts
        new_ends = np.cumsum(sizes)
        # Place k of the new ids belongs to some request r: it is k-th after r's new start, and so after r's old start.
        places = np.arange(int(sizes.sum())) + np.repeat(starts - (new_ends - sizes), sizes)
        return Columns(
            self.arrival_s[index],
            self.prompt_tokens[index],
            self.output_tokens[index],
            self.blocks[places],
            new_ends,
            None if self.shard is None else self.shard[index],
        )


def columns_of(rows: Sequence[Row]) -> Columns:
    """Rows as columns."""
    sizes = np.fromiter((len(row[3]) for row in rows), np.int64, len(rows))
    ids = chain.from_iterable(row[3] for row in rows)
    return Columns(
        np.fromiter((row[0] for row in rows), np.float64, len(rows)),
        np.fromiter((row[1] for row in rows), np.int64, len(rows)),
        np.fromiter((row[2] for row in rows), np.int64, len(rows)),
        np.fromiter(ids, np.int64, int(sizes.sum())),
        np.cumsum(sizes),
    )


def batches_of(rows: Iterable[Row]) -> Iterator[Columns]:
    """Rows as columns of at most `BATCH` requests, lazily."""
    remaining = iter(rows)
    while taken := list(islice(remaining, BATCH)):
        yield columns_of(taken)
