"""Opens a trace of any format, detected from its content."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from loadgen import json_text
from loadgen.errors import UsageError
from loadgen.trace.bailian import BAILIAN_BLOCK_TOKENS, BailianTrace
from loadgen.trace.lines import decoded, empty, numbered_lines, trace_error
from loadgen.trace.mooncake import MOONCAKE_BLOCK_TOKENS, MooncakeTrace
from loadgen.trace.recorded import RecordedTrace, read_header
from loadgen.trace.request import Trace
from loadgen.trace.servegen import ServeGenTrace
from loadgen.trace.tables import CsvFormat, TableTrace, custom_table, table_of
from loadgen.trace.tracelab import TRACELAB_BLOCK_TOKENS, TRACELAB_COLUMNS, TraceLabTrace
from loadgen.trace.weka import WekaTrace

FORMATS = (
    "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids), Qwen-Bailian JSON lines (chat_id, ...), "
    "agents' conversations of kv-cache-tester (id, block_size, requests) and of TraceLab (session_id, round_index, "
    "..., or CSV: session_id,round_idx,prefix_len,...), a load generator's trace, CSV of Azure's "
    "(TIMESTAMP,ContextTokens,GeneratedTokens), BurstGPT's (Timestamp,Request tokens,Response tokens), Mooncake's "
    "names (timestamp,input_length,output_length) or plain (arrival_s,prompt_tokens,output_tokens, or vLLM's names), "
    "any other CSV by --columns timestamp=NAME,..., a ServeGen folder"
)


class _BlockSize(msgspec.Struct):
    block_size: Annotated[int, msgspec.Meta(ge=1)]


_BLOCK_SIZE = json_text.Decoder(_BlockSize)
_OBJECT = json_text.Decoder(dict[str, msgspec.Raw])
_MOST_VOLUME = 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading a trace, where its format leaves a choice.

    Attributes:
        block_tokens: tokens per hash id; None = from the format (or the header).
        clients: of a ServeGen folder; empty = all. volume: so many times its requests in the same time.
        columns: of a CSV, see `custom_table`; None = those of the format detected from the first line.
        start_s, end_s: stretch of a ServeGen folder's time for which requests are made. seed: of those.
    """

    block_tokens: int | None = None
    clients: Sequence[int] = ()
    volume: float = 1.0
    start_s: float = 0.0
    end_s: float = math.inf
    seed: int = 0
    columns: str | None = None


_AS_IT_IS = Reading()


def open_trace(path: Path, reading: Reading = _AS_IT_IS) -> Trace:
    """The reader of a trace, whose format is that of its first line, or of its being a folder.

    Raises: TraceFormatError if its format is unknown, or it cannot be read; UsageError for a way of reading that
        its format does not have.
    """
    if reading.block_tokens is not None and reading.block_tokens < 1:
        raise UsageError(f"blocks of {reading.block_tokens} tokens: at least 1")
    table = None if reading.columns is None else custom_table(reading.columns)
    if path.is_dir():
        _refuse_columns(path, table)
        return _folder(path, reading)
    if reading.clients:
        raise UsageError(f"{path}: only ServeGen folders have clients to choose from; leave them out")
    if reading.volume != 1:
        raise UsageError(f"{path}: only a ServeGen folder's requests are made up, at any volume; set a rate instead")
    for number, line in numbered_lines(path):
        if line.lstrip().startswith(b"{"):
            _refuse_columns(path, table)
            return _json_trace(path, number, line, reading.block_tokens)
        return _table(path, number, line, reading.block_tokens, table)
    raise empty(path)


def _folder(path: Path, reading: Reading) -> Trace:
    """The reader of a ServeGen folder.

    Raises: UsageError.
    """
    _refuse_blocks(path, reading.block_tokens)
    if not 0 < reading.volume <= _MOST_VOLUME:
        raise UsageError(f"a volume of {reading.volume:g}; it must be above 0 (and at most {_MOST_VOLUME:g})")
    return ServeGenTrace(path, tuple(reading.clients), reading.start_s, reading.end_s, reading.seed, reading.volume)


def _json_trace(path: Path, number: int, line: bytes, block_tokens: int | None) -> Trace:
    """The reader of JSON lines.

    Raises: TraceFormatError, UsageError.
    """
    keys = decoded(path, number, line, _OBJECT, "a JSON object")
    if "schema" in keys:
        header = read_header(path, line)
        if block_tokens not in (None, header.block_tokens):
            raise UsageError(
                f"{path}: its header says that blocks have {header.block_tokens} tokens; leave --block-tokens out"
            )
        return RecordedTrace(path, header)
    if "requests" in keys and "block_size" in keys:
        if block_tokens is not None:
            raise UsageError(f"{path}: its lines say how many tokens a block has; leave --block-tokens out")
        return WekaTrace(path, decoded(path, number, line, _BLOCK_SIZE, "a conversation with a block_size").block_size)
    if "session_id" in keys and "newly_append_tokens" in keys:
        return TraceLabTrace(path, block_tokens or TRACELAB_BLOCK_TOKENS)
    if "chat_id" in keys:
        return BailianTrace(path, block_tokens or BAILIAN_BLOCK_TOKENS)
    if "input_length" in keys:
        return MooncakeTrace(path, block_tokens or MOONCAKE_BLOCK_TOKENS)
    raise trace_error(path, number, f"JSON without input_length, so no trace that is known; known are {FORMATS}")


def _table(path: Path, number: int, line: bytes, block_tokens: int | None, table: CsvFormat | None) -> Trace:
    """The reader of CSV: by the columns that were named, or of the format with which it shares most columns.

    Raises: TraceFormatError if that is none; UsageError.
    """
    names = {name.strip().strip('"') for name in re.split("[,\n]", line.decode(errors="replace"))}
    if table is None and names.issuperset(TRACELAB_COLUMNS):
        return TraceLabTrace(path, block_tokens or TRACELAB_BLOCK_TOKENS, table=True)
    table = table or table_of(names)
    if table is None:
        raise trace_error(path, number, f"the first line is of no known trace format; known are {FORMATS}")
    _refuse_blocks(path, block_tokens)
    return TableTrace(path, table)


def _refuse_columns(path: Path, table: CsvFormat | None) -> None:
    """Raises: UsageError for columns where there are none."""
    if table is not None:
        raise UsageError(f"{path}: only CSV has columns to name; leave --columns out")


def _refuse_blocks(path: Path, block_tokens: int | None) -> None:
    if block_tokens is not None:
        raise UsageError(f"{path}: this format has no hash_ids; leave --block-tokens out")
