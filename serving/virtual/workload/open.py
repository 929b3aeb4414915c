"""A trace of any format as a workload: `loadgen.trace` reads it, here it is cut, repeated, scaled and shared out."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from loadgen.trace import Reading, ServeGenTrace, Trace, open_trace
from serving.errors import ConfigError
from serving.virtual.workload.columns import Columns
from serving.virtual.workload.errors import TraceError, refused_in_our_terms
from serving.virtual.workload.reading import batches
from serving.virtual.workload.replay import Portion, Replay, Stretch
from serving.virtual.workload.request import RequestStream
from serving.virtual.workload.scaling import Scaling
from serving.virtual.workload.sharding import sharded

KEPT_BYTES = 64 << 20
"""Traces up to this size are read once and kept, which takes about as much memory; larger ones are read as they go."""

_MADE_BYTES = 40
"""Memory of a request that is made up from windows: three columns, the end of its ids, its shard."""

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
    """A trace as a workload that can be read any number of times.

    Args:
        path: file, or folder of a ServeGen model.
        rate: factor; time is compressed by it. length: factor on prompts and answers, of which `prompt_length` and
            `output_length` are set apart if given. See `scaling` for what becomes of prefix ids.
        limit: requests at most, of all repetitions and shards together.
        start_s, duration_s: stretch of the trace, in its own time; arrivals then count from its start.
        seed: of requests that are made up (ServeGen). repeat: times that the trace is played, one after the other,
            each with prefixes of its own.
        shard: (which, of how many); see `sharding`. Together, shards are the whole.
        clients: of a ServeGen folder; empty = all. volume: so many times its requests in the same time.
        token_s: time that answers take per token [s], where a trace has sessions whose turns wait for answers.
        block_tokens: that one id stands for. columns: of a CSV, see `custom_table`. None = as the format has it.
        kept_bytes: traces up to this size are read and checked here, and kept; larger ones as they go, in each pass.
    Returns: count and last arrival are known for traces that are kept; of others, when the stretch ends if it does.
    Raises: TraceError if the trace is no such thing, in one line; ConfigError for what else cannot be.
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
    own_block = trace.block_tokens
    scaled_block = _NO_IDS_BLOCK_TOKENS if own_block is None else scaling.block_tokens(own_block)
    keeps = _size_bytes(path, trace) <= kept_bytes
    source = _source(trace, token_s, stretch, portion.shard[1], keeps)
    replay = Replay(str(path), source, own_block, stretch, scaling, portion)
    count, last_s = replay.measure() if keeps else (None, replay.ends_s())
    if not keeps:
        _look_at_the_first(trace)
    return RequestStream(
        _name(path, replay, volume), replay, count=count, duration_s=last_s, block_tokens=scaled_block,
        notes=trace.notes,
    )  # fmt: skip


def _size_bytes(path: Path, trace: Trace) -> float:
    """About what its requests take in memory.

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
    """Read one request of a trace that is not kept: a mistake in it is told now, and what its times are is known.

    Raises: TraceError.
    """
    if not isinstance(trace, ServeGenTrace):
        with refused_in_our_terms():
            next(trace.requests(), None)


def _source(
    trace: Trace, token_s: float, stretch: Stretch, shards: int, keeps: bool
) -> Callable[[], Iterable[Columns]]:
    """One pass through the stretch of a trace, shards assigned: from memory, or read anew."""
    if keeps:
        kept = list(sharded(stretch.of(batches(trace, token_s)), shards))
        return lambda: kept
    return lambda: sharded(stretch.of(batches(trace, token_s)), shards)


def _name(path: Path, replay: Replay, volume: float) -> str:
    """The trace and what was done to it."""
    stretch, portion = replay.stretch, replay.portion
    parts = [f"{volume:g} x its requests"] * (volume != 1) + replay.scaling.said()
    if stretch != Stretch():
        end = "" if stretch.end_s == math.inf else f"{stretch.end_s:g}"
        parts.append(f"{stretch.start_s:g}-{end} s")
    parts += [f"{portion.repeat} times"] * (portion.repeat > 1)
    parts += [f"first {portion.limit}"] * (portion.limit is not None)
    parts += [f"shard {portion.shard[0]} of {portion.shard[1]}"] * (portion.shard[1] > 1)
    return ", ".join([path.name, *parts])
