"""Requests as columns, the form in which traces are read, scaled, repeated and sharded.

One NumPy operation processes thousands of requests; only the simulation converts them to values one by one. The prefix
ids of all requests are concatenated in one array.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.errors import TraceFormatError, UsageError
from serving.errors import ConfigError

if TYPE_CHECKING:
    from serving.virtual.workload.jobs import TraceJob

# Input of a simulation: requests with lengths, arrival times and, where a trace has them, prefix names.


class TraceRequest(NamedTuple):
    """One request of a trace.

    Attributes:
        arrival_s: from the start of the trace [s]; requests are in order of arrival.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        blocks: prefix identity of each of the prompt's leading blocks of `RequestStream.block_tokens` tokens (the last
            may be partly filled): equal numbers at equal positions mean equal prompts up to that block. Empty = not
            known, hence no shared prefix.
        key: API key of the request; several configured keys take turns.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class RequestStream:
    """Stream of requests, read once from start to end.

    Attributes:
        name: for reports: file name and how it was scaled.
        requests: in order of arrival. May be lazy; one run consumes it unless it is a sequence.
        count: number of requests, for progress; None = not known.
        duration_s: last arrival [s], for progress; None = not known.
        block_tokens: tokens per entry of `blocks`.
        concurrency: open requests of a closed loop, which sends a request as soon as another has ended and ignores
            arrival times. None = an open loop.
        jobs: conversations in order of their start, in place of `requests`, which is then empty; `count` and
            `concurrency` then count conversations.
        notes: how the reader interpreted unusual records, one sentence each; filled as requests are read.
    """

    name: str
    requests: Iterable[TraceRequest]
    count: int | None = None
    duration_s: float | None = None
    block_tokens: int = 512
    concurrency: int | None = None
    jobs: "Iterable[TraceJob] | None" = None
    notes: Mapping[str, str] = field(default_factory=dict, compare=False)

    def closed(self, concurrency: int) -> "RequestStream":
        """The same requests in a closed loop, whose duration is not known in advance."""
        name = f"{self.name}, {concurrency:,} at a time"
        return replace(self, name=name, duration_s=None, concurrency=concurrency)


# Requests as columns, the form in which traces are read, scaled, repeated and sharded.

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Row = tuple[float, int, int, Sequence[int]]
"""arrival [s], prompt tokens, output tokens, prefix ids."""

BATCH = 8192
"""Requests per batch: large enough to make the per-batch overhead negligible, small enough for the CPU caches."""

LARGEST_ID = 2**63 - 1
"""Largest id of a column; publishers of traces cut ids that are hashes to 63 bits."""

# As TraceRequest._make, without a Python frame for each request.
_as_request = partial(tuple.__new__, TraceRequest)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Requests in order of arrival.

    Attributes:
        arrival_s: [requests] float64.
        prompt_tokens, output_tokens: [requests] int64.
        blocks: [ids of all requests] int64.
        ends: [requests] int64: end of each request's ids in `blocks`.
        shard: [requests] int64: part of a sharded simulation that takes the request; None = not sharded.
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
        """[requests] int64: start of each request's ids in `blocks`."""
        return np.concatenate((np.zeros(min(1, len(self)), np.int64), self.ends[:-1]))

    def requests(self) -> Iterator[TraceRequest]:
        """The requests as values."""
        return map(
            _as_request,
            zip(
                self.arrival_s.tolist(),
                self.prompt_tokens.tolist(),
                self.output_tokens.tolist(),
                self.id_tuples(),
                repeat(""),  # trace files have no API keys
                strict=False,
            ),
        )

    def id_tuples(self) -> Iterator[tuple[int, ...]]:
        """Each request's ids; an endless stream of empty tuples if no request has ids."""
        if not len(self.blocks):
            return repeat(())
        ids = tuple(self.blocks.tolist())
        return map(ids.__getitem__, map(slice, self.starts.tolist(), self.ends.tolist()))

    def take(self, index: IntArray) -> "Columns":
        """Select some of the requests.

        Args:
            index: [taken] int64, positions in these columns, ascending.
        """
        starts, ends = self.starts[index], self.ends[index]
        sizes = ends - starts
        new_ends = np.cumsum(sizes)
        # New id k belongs to some request r, and has the same offset from r's new start as from its old start.
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


# Errors of traces.


class TraceError(ConfigError):
    """A trace cannot be read or has an invalid request. The message names file and line, and what to do."""


@contextmanager
def refused_in_our_terms() -> Iterator[None]:
    """Convert the errors of the trace reader to `TraceError` and `ConfigError`, with the same message.

    Raises: TraceError, ConfigError.
    """
    try:
        yield
    except TraceFormatError as error:
        raise TraceError(str(error)) from None
    except UsageError as error:
        raise ConfigError(str(error)) from None
