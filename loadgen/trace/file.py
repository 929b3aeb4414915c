"""The trace file: JSON lines, of which each but the first is a line of a Mooncake trace with more in it.

First line, the header:

    {"schema": "loadgen-trace/1", "block_tokens": 16, "hash_ids": "given", "endpoint": "/v1/completions", "requests": 2}

    block_tokens      tokens of one block of `hash_ids`
    hash_ids          "given": the workload knew its blocks, equal ids at equal positions are equal tokens;
                      "computed": from the prompts, by `bytes_per_block` bytes of UTF-8 for each block (token ids are
                      cut exactly); a prompt's last block takes what is left over
    bytes_per_block   only with "computed", where any prompt is text
    endpoint          path that the requests went to
    requests          lines that follow

Then one line per request:

    {"timestamp": 27482.125, "input_length": 345, "output_length": 52, "hash_ids": [46, 47], "session": 3, "turn": 0,
     "body": "{\\"model\\": ...}"}

    timestamp         ms from the start, in steps of a microsecond. Of a later turn: when it would come if answers took
                      no time; it really comes `think_ms` after the answer in front of it
    input_length      tokens of the whole prompt, history and chat template included
    output_length     tokens of the answer
    hash_ids          one for each block of the prompt, the last of which may be partial; a hash covers all before it.
                      Empty if unknown
    session, turn     lines of a session stand together, turns from 0 without gaps; sessions ascend, and so do the
                      times at which they begin
    input_length_estimated    true if nobody counted, else missing
    think_ms          pause between the answer in front of it and this turn; missing if 0
    tenant            group it belongs to; missing if empty
    conduct           how its client behaved, if not normal (`plan.Conduct`); a replay behaves normally
    body              the exact request body as text; missing if not recorded

`json.loads` of each line is all that a reader needs. Keys that are not listed are ignored. Order of keys, spaces and
number format are fixed (those of Python's `json.dumps`, text not escaped beyond need): what `write_trace` wrote and
`read_trace` read, `write_trace` writes again byte for byte.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError
from loadgen.output import explained
from loadgen.trace.lines import numbered_lines

SCHEMA = "loadgen-trace/1"
LARGEST_ID = 2**63 - 1
"""Ids that some traces have are hashes themselves."""
_NORMAL = "normal"


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line; see the module. `bytes_per_block`: 0 if no text was hashed."""

    schema: str = SCHEMA
    block_tokens: int
    hash_ids: Literal["given", "computed"]
    bytes_per_block: int = 0
    endpoint: str = ""
    requests: int


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request; see the module. Times are whole microseconds, which is what the file can hold."""

    timestamp_us: int
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    session: int
    turn: int = 0
    input_length_estimated: bool = False
    think_us: int = 0
    tenant: str = ""
    conduct: str = _NORMAL
    body: str | None = None


class _Line(msgspec.Struct, kw_only=True):
    """One request as it stands in the file."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    session: int
    turn: int = 0
    input_length_estimated: bool = False
    think_ms: float = 0.0
    tenant: str = ""
    conduct: str = _NORMAL
    body: str | None = None


_DECODER = json_text.Decoder(_Line)


def write_trace(path: Path, header: TraceHeader, requests: Iterable[TraceRequest]) -> None:
    """Write a trace file, whole or not at all.

    Raises: OutputError if it cannot be written.
    Effects: replaces `path`.
    """
    write_lines(path, (header_line(header), *map(request_line, requests)))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines under a temporary name, then rename it.

    Raises: OutputError.
    """
    temporary = path.with_name(path.name + ".part")
    with explained(path):
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(temporary, path)


def header_line(header: TraceHeader) -> str:
    """The header as it stands in the file, without the end of the line."""
    fields = msgspec.structs.asdict(header)
    return _dumped({name: value for name, value in fields.items() if name != "bytes_per_block" or value})


def request_line(request: TraceRequest) -> str:
    """A request as it stands in the file, without the end of the line."""
    fields: dict[str, object] = {
        **mooncake_fields(request),
        "session": request.session,
        "turn": request.turn,
    }
    if request.input_length_estimated:
        fields["input_length_estimated"] = True
    if request.think_us:
        fields["think_ms"] = milliseconds(request.think_us)
    if request.tenant:
        fields["tenant"] = request.tenant
    if request.conduct != _NORMAL:
        fields["conduct"] = request.conduct
    if request.body is not None:
        fields["body"] = request.body
    return _dumped(fields)


def mooncake_fields(request: TraceRequest) -> dict[str, object]:
    """What a Mooncake trace has of a request."""
    return {
        "timestamp": milliseconds(request.timestamp_us),
        "input_length": request.input_length,
        "output_length": request.output_length,
        "hash_ids": request.hash_ids,
    }


def mooncake_line(request: TraceRequest) -> str:
    """A request as a line of a Mooncake trace, byte for byte in their form."""
    return _dumped(mooncake_fields(request))


def milliseconds(time_us: int) -> int | float:
    """Microseconds as milliseconds: a whole number if it is one, else with three decimals at most."""
    return time_us // 1000 if time_us % 1000 == 0 else time_us / 1000


def read_header(path: Path) -> TraceHeader:
    """The header of a trace.

    Raises: UsageError if the file cannot be read; TraceFormatError if it does not begin as a trace of this version.
    """
    for _, line in numbered_lines(path):
        return _header(path, line)
    raise TraceFormatError(f"{path}:1: empty; a trace begins with its header")


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace, lazily.

    Raises: UsageError if the file cannot be read; TraceFormatError naming the line that is no request, or does not
        follow from the one in front of it; or if the file has another number of requests than its header says.
    """
    header: TraceHeader | None = None
    before: TraceRequest | None = None
    begun_us = count = 0
    for number, line in numbered_lines(path):
        if header is None:
            header = _header(path, line)
            continue
        request = _request(path, number, line)
        _check_order(path, number, before, request, begun_us)
        begun_us = request.timestamp_us if request.turn == 0 else begun_us
        before = request
        count += 1
        yield request
    if header is None:
        raise TraceFormatError(f"{path}:1: empty; a trace begins with its header")
    if count != header.requests:
        raise TraceFormatError(f"{path}: the header says {header.requests} requests, there are {count}; is it cut off?")


def _header(path: Path, line: bytes) -> TraceHeader:
    """Raises: TraceFormatError."""
    try:
        fields = json_text.decode(line)
        schema = fields.get("schema") if isinstance(fields, dict) else None
        if schema != SCHEMA:
            hint = "; for a Mooncake trace use --dataset-name mooncake" if schema is None else ""
            raise TraceFormatError(f"{path}:1: not a trace of schema {SCHEMA}{hint}")
        header = msgspec.convert(fields, TraceHeader)
    except NOT_JSON as error:
        raise TraceFormatError(f"{path}:1: not the header of a trace ({error})") from None
    if header.block_tokens < 1:
        raise TraceFormatError(f"{path}:1: block_tokens must be above 0")
    return header


def _request(path: Path, number: int, line: bytes) -> TraceRequest:
    """Raises: TraceFormatError."""
    try:
        fields = msgspec.structs.asdict(_DECODER.decode(line))
    except NOT_JSON as error:
        raise TraceFormatError(f"{path}:{number}: not a request of a trace ({error})") from None
    times = fields.pop("timestamp"), fields.pop("think_ms")
    smallest = min(*times, fields["input_length"], fields["output_length"], fields["turn"], *fields["hash_ids"])
    if smallest < 0 or max(fields["hash_ids"], default=0) > LARGEST_ID:
        raise TraceFormatError(
            f"{path}:{number}: times, lengths, turn and hash_ids must not be negative (or above 2^63)"
        )
    timestamp_us, think_us = (round(time * 1000) for time in times)
    return TraceRequest(timestamp_us=timestamp_us, think_us=think_us, **fields)


def _check_order(path: Path, number: int, before: TraceRequest | None, request: TraceRequest, begun_us: int) -> None:
    """Raises: TraceFormatError if a request does not follow from the one in front of it."""
    same = before is not None and before.session == request.session
    expected = before.turn + 1 if before is not None and same else 0
    if request.turn != expected:
        raise TraceFormatError(
            f"{path}:{number}: turn {request.turn} of session {request.session}, expected {expected}"
        )
    if before is None or same:
        return
    if request.session < before.session or request.timestamp_us < begun_us:
        raise TraceFormatError(f"{path}:{number}: sessions and the times at which they begin must ascend")


def _dumped(fields: dict[str, object]) -> str:
    """JSON as Mooncake writes it."""
    return json.dumps(fields, ensure_ascii=False)
