"""Opens a trace of any format as a workload: `loadgen.trace` reads it, `Replay` cuts, repeats, scales and shards it."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from loadgen.trace import Reading, ServeGenTrace, Trace, TraceLabTrace, WekaTrace, open_trace
from serving.errors import ConfigError
from serving.virtual.workload.columns import Columns, RequestStream, Row, TraceError, batches_of, refused_in_our_terms
from serving.virtual.workload.jobs import JobReplay, jobs_of
from serving.virtual.workload.replay import Portion, Replay, Stretch
from serving.virtual.workload.reshaping import Scaling, sharded

KEPT_BYTES = 64 << 20
"""Traces up to this size are read once and kept, in about as much memory; larger ones are read again in each pass."""

_MADE_BYTES = 40
"""Memory of a request generated from windows [B]: three columns, the end of its ids, its shard."""

_NO_IDS_BLOCK_TOKENS = 512


def open_workload(
    path: Path | str,
    *,
    rate: float = 1.0,
    length: float = 1.0,
    prompt_length: float | None = None,
    output_length: float | None = None,
    limit: int | None = None,
    start_s: float = 0.0,
    duration_s: float | None = None,
    seed: int = 0,
    repeat: int = 1,
    shard: tuple[int, int] = (0, 1),
    clients: Sequence[int] = (),
    volume: float = 1.0,
    token_s: float = 0.0,
    block_tokens: int | None = None,
    columns: str | None = None,
    kept_bytes: int = KEPT_BYTES,
) -> RequestStream:
    """Open a trace as a workload that can be read any number of times.

    Args:
        path: file, or folder of a ServeGen model.
        rate: factor by which time is compressed, but not pauses in agents' conversations. length: factor on lengths;
            `prompt_length` and `output_length` override it for one of them. Its effect on prefix ids: see `reshaping`.
        limit: most requests (of an agents' trace: conversations), of all repetitions and shards together.
        start_s, duration_s: stretch of the trace, in its own time [s]; arrivals are then relative to its start.
        seed: of generated requests (ServeGen). repeat: number of passes through the trace, each with its own prefixes.
        shard: (index, number of shards); see `reshaping`. The shards together are the whole workload.
        clients: of a ServeGen folder; empty = all. volume: factor on the number of its requests in the same time.
        token_s: assumed response time per output token [s], for traces with sessions whose turns wait for responses.
        block_tokens: tokens per prefix id. columns: of a CSV, see `custom_table`. None = as the format defines it.
        kept_bytes: traces up to this size are read, checked and kept; larger ones are read again in each pass.
    Returns: the workload; count and last arrival are known for kept traces, for others only the end of the stretch.
    Raises: TraceError if the trace cannot be read, in one line; ConfigError for other settings that are not possible.
    """
    path = Path(path)
    stretch = Stretch(start_s, math.inf if duration_s is None else start_s + duration_s)
    prompt, output = (length if one is None else one for one in (prompt_length, output_length))
    scaling = Scaling(rate, prompt, output)
    if not 0 <= token_s < math.inf:
        raise ConfigError(f"answers of {token_s:g} s per token; that is not negative")
    portion = Portion(repeat, limit, shard)
    reading = Reading(block_tokens, clients, volume, stretch.start_s, stretch.end_s, seed, columns)
    with refused_in_our_terms():
        trace = open_trace(path, reading)
    if isinstance(trace, TraceLabTrace | WekaTrace):
        return _job_stream(path, trace, stretch, scaling, portion)
    own_block = trace.block_tokens
    scaled_block = _NO_IDS_BLOCK_TOKENS if own_block is None else scaling.block_tokens(own_block)
    keeps = _size_bytes(path, trace) <= kept_bytes
    source = _source(trace, token_s, stretch, portion.shard[1], keeps)
    replay = Replay(str(path), source, own_block, stretch, scaling, portion)
    count, last_s = replay.measure() if keeps else (None, replay.ends_s())
    return RequestStream(
        _name(path, replay, volume), replay, count=count, duration_s=last_s, block_tokens=scaled_block,
        notes=trace.notes,
    )  # fmt: skip


def _job_stream(
    path: Path, trace: TraceLabTrace | WekaTrace, stretch: Stretch, scaling: Scaling, portion: Portion
) -> RequestStream:
    """The conversations of a trace.

    Raises: TraceError if the stretch has none.
    """
    replay = JobReplay(jobs_of(trace, stretch, portion.limit), trace.block_tokens, stretch, scaling, portion)
    count, last_s = 0, 0.0
    for job in replay:
        count, last_s = count + 1, job.start_s
    if not replay.kept:
        raise TraceError(f"{path}: no conversation starts in this stretch; choose another one")
    return RequestStream(
        _name(path, replay, 1.0), (), count=count, duration_s=last_s, jobs=replay, notes=trace.notes,
        block_tokens=scaling.block_tokens(trace.block_tokens),
    )  # fmt: skip


def _size_bytes(path: Path, trace: Trace) -> float:
    """Approximate memory of the trace's requests [B].

    Raises: TraceError.
    """
    if isinstance(trace, ServeGenTrace):
        with refused_in_our_terms():
            return trace.expected() * _MADE_BYTES
    try:
        return path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from None


def _look_at_the_first(trace: Trace) -> None:
    """Read one request of a trace that is not kept, to report a wrong format early and to learn its unit of time.

    Raises: TraceError.
    """
    if not isinstance(trace, ServeGenTrace):
        with refused_in_our_terms():
            next(trace.requests(), None)


def _source(
    trace: Trace, token_s: float, stretch: Stretch, shards: int, keeps: bool
) -> Callable[[], Iterable[Columns]]:
    """One pass through the stretch of a trace, with shards assigned: from memory, or read again."""
    if keeps:
        kept = list(sharded(stretch.of(batches(trace, token_s)), shards))
        return lambda: kept
    _look_at_the_first(trace)
    return lambda: sharded(stretch.of(batches(trace, token_s)), shards)


def _name(path: Path, replay: Replay | JobReplay, volume: float) -> str:
    """Name of the trace and of the changes to it."""
    stretch, portion = replay.stretch, replay.portion
    parts = [f"{volume:g} x its requests"] * (volume != 1) + replay.scaling.said()
    if stretch != Stretch():
        end = "" if stretch.end_s == math.inf else f"{stretch.end_s:g}"
        parts.append(f"{stretch.start_s:g}-{end} s")
    parts += [f"{portion.repeat} times"] * (portion.repeat > 1)
    parts += [f"first {portion.limit}"] * (portion.limit is not None)
    parts += [f"shard {portion.shard[0]} of {portion.shard[1]}"] * (portion.shard[1] > 1)
    return ", ".join([path.name, *parts])


# Conversion of a trace's records to columns: arrivals of all turns in order, whole prefix ids, no bodies.
#
# Traces with sessions record the start of a session and the user's pause before each later turn, not when that turn
# arrives, which depends on the previous response. A replay must assume the response time: a fixed time per output
# token, by default 0, so that a turn follows its predecessor after the pause alone.


def batches(trace: Trace, token_s: float = 0.0) -> Iterator[Columns]:
    """All requests of a trace in order of arrival, read from the trace on each call.

    Args:
        token_s: assumed time per output token before the pause of the next turn starts [s].
    Raises: TraceError with the line that is not a request or is out of order.
    """
    with refused_in_our_terms():
        if isinstance(trace, ServeGenTrace):
            for window in trace.windows():
                none = np.zeros(len(window.arrival_s), np.int64)
                yield Columns(window.arrival_s, window.input_tokens, window.output_tokens, np.empty(0, np.int64), none)
        else:
            yield from batches_of(_in_order(trace, token_s))


def _in_order(trace: Trace, token_s: float) -> Iterator[Row]:
    """All turns in order of arrival, lazily; at equal times in the order of the trace.

    Memory: the later turns that have not arrived yet.
    """
    block_tokens = trace.block_tokens or 1
    waiting: list[tuple[float, int, Row]] = []
    answers_s: dict[int | str | None, float] = {}
    zero = 0
    for number, request in enumerate(trace.requests()):
        arrival_s, input_tokens, ids = request.arrival_s, request.input_tokens, request.hash_ids
        # A truncated response is recorded as 0 tokens; the replay requests 1 token, as the load generator does.
        output_tokens = request.output_tokens or 1
        zero += not request.output_tokens
        if len(ids) * block_tokens >= input_tokens + block_tokens:  # the ids are of a longer prompt
            ids = ids[: -(-input_tokens // block_tokens)]
        if token_s and request.session is not None:
            arrival_s += answers_s.get(request.session, 0.0) if request.follows else 0.0
            answers_s[request.session] = arrival_s - request.arrival_s + output_tokens * token_s
        row = (arrival_s, input_tokens, output_tokens, ids)
        if request.follows:
            heapq.heappush(waiting, (arrival_s, number, row))
            continue
        while waiting and waiting[0][0] <= arrival_s:
            yield heapq.heappop(waiting)[2]
        yield row
    while waiting:
        yield heapq.heappop(waiting)[2]
    if zero:
        trace.notes["answers"] = f"answers of 0 tokens, asked for with 1: {zero}"
