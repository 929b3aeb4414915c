"""Opening a trace whatever its format, which is found from its content."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from serving.errors import ConfigError
from serving.sim.workload.columns import Columns
from serving.sim.workload.errors import trace_error
from serving.sim.workload.lines import decoded, empty, numbered_lines, unreadable
from serving.sim.workload.mooncake import MooncakeTrace
from serving.sim.workload.recorded import RecordedTrace, read_header
from serving.sim.workload.replay import Portion, Replay, Stretch
from serving.sim.workload.request import Workload
from serving.sim.workload.scaling import Scaling
from serving.sim.workload.servegen import ServeGenTrace
from serving.sim.workload.sharding import sharded
from serving.sim.workload.tables import AZURE, PLAIN, TableTrace

KEPT_BYTES = 64 << 20
"""Traces up to this size are read once and kept, which takes about as much memory; larger ones are read as they go."""

_MADE_BYTES = 40
"""Memory of a request that is made up from windows: three columns, the end of its ids, its shard."""

_FORMATS = (
    "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids), a load generator's trace, "
    f"CSV with {','.join(AZURE)} or {','.join(PLAIN)}, a ServeGen folder"
)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_IDS_BLOCK_TOKENS = 512
_MOST_VOLUME = 1e6


class Trace(Protocol):
    """What each format's reader is."""

    @property
    def block_tokens(self) -> int | None:
        """Tokens that one id stands for; None = the format has no ids."""

    def batches(self) -> Iterator[Columns]:
        """All requests, read anew, in order of arrival. Raises: TraceError."""


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
    kept_bytes: int = KEPT_BYTES,
) -> Workload:
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
    trace = find_trace(path, clients=clients, volume=volume, stretch=stretch, seed=seed, token_s=token_s)
    block_tokens = trace.block_tokens
    scaled_block = _NO_IDS_BLOCK_TOKENS if block_tokens is None else scaling.block_tokens(block_tokens)
    keeps = _size_bytes(path, trace) <= kept_bytes
    source = _source(trace, stretch, portion.shard[1], keeps)
    replay = Replay(str(path), source, block_tokens, stretch, scaling, portion)
    count, last_s = replay.measure() if keeps else (None, replay.ends_s())
    return Workload(_name(path, replay, volume), replay, count=count, duration_s=last_s, block_tokens=scaled_block)


def find_trace(
    path: Path,
    *,
    clients: Sequence[int] = (),
    volume: float = 1.0,
    stretch: Stretch | None = None,
    seed: int = 0,
    token_s: float = 0.0,
) -> Trace:
    """The reader of a trace, whose format is that of its first line, or of its being a folder.

    Raises: TraceError if it is nothing that is known, or cannot be read.
    """
    if path.is_dir():
        stretch = stretch or Stretch()
        if not 0 < volume <= _MOST_VOLUME:
            raise ConfigError(f"a volume of {volume:g}; it must be above 0 (and at most {_MOST_VOLUME:g})")
        return ServeGenTrace(path, tuple(clients), stretch.start_s, stretch.end_s, seed, volume)
    if clients:
        raise ConfigError(f"{path}: only ServeGen folders have clients to choose from; leave them out")
    if volume != 1:
        raise ConfigError(f"{path}: only a ServeGen folder's requests are made up, at any volume; set a rate instead")
    for number, line in numbered_lines(path):
        if line.lstrip().startswith(b"{"):
            return _json_trace(path, number, line, token_s)
        return _table(path, number, line)
    raise empty(path)


def _json_trace(path: Path, number: int, line: bytes, token_s: float) -> Trace:
    """The reader of JSON lines.

    Raises: TraceError.
    """
    keys = decoded(path, number, line, _OBJECT, "a JSON object")
    if "schema" in keys:
        header = read_header(path, line)
        return RecordedTrace(path, header.block_tokens, header.requests, token_s)
    if "input_length" in keys:
        return MooncakeTrace(path, token_s)
    raise trace_error(path, number, f"JSON without input_length, so no trace that is known; known are {_FORMATS}")


def _table(path: Path, number: int, line: bytes) -> Trace:
    """The reader of CSV: of the format with which it shares most columns.

    Raises: TraceError if that is none.
    """
    names = {name.strip() for name in re.split("[,\n]", line.decode(errors="replace"))}
    best = max((AZURE, PLAIN), key=lambda columns: len(names.intersection(columns)))
    if not names.intersection(best):
        raise trace_error(path, number, f"the first line tells of no trace that is known; known are {_FORMATS}")
    return TableTrace(path, best)


def _size_bytes(path: Path, trace: Trace) -> float:
    """About what its requests take in memory.

    Raises: TraceError.
    """
    if isinstance(trace, ServeGenTrace):
        return trace.expected() * _MADE_BYTES
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None


def _source(trace: Trace, stretch: Stretch, shards: int, keeps: bool) -> Callable[[], Iterable[Columns]]:
    """One pass through the stretch of a trace, shards assigned: from memory, or read anew."""
    if keeps:
        kept = list(sharded(stretch.of(trace.batches()), shards))
        return lambda: kept
    return lambda: sharded(stretch.of(trace.batches()), shards)


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
