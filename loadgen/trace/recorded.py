"""Our own trace format: JSON lines; all but the first are lines of a Mooncake trace with additional keys.

First line, the header:

    {"schema": "loadgen-trace/1", "block_tokens": 16, "hash_ids": "given", "endpoint": "/v1/completions", "requests": 2}

    block_tokens      tokens of one block of `hash_ids`
    hash_ids          "given": the workload knew its blocks, equal ids at equal positions are equal tokens;
                      "computed": from the prompts, by `bytes_per_block` bytes of UTF-8 for each block (token ids are
                      cut exactly); a prompt's last block holds the rest
    bytes_per_block   only with "computed", where any prompt is text
    endpoint          path of the requests
    requests          lines that follow

Then one line per request:

    {"timestamp": 27482.125, "input_length": 345, "output_length": 52, "hash_ids": [46, 47], "session": 3, "turn": 0,
     "body": "{\\"model\\": ...}"}

    timestamp         ms from the start, in steps of a microsecond. Of a later turn: its time if responses took
                      no time; it is sent `think_ms` after the previous response
    input_length      tokens of the whole prompt, history and chat template included
    output_length     tokens of the response; 0 if it was cut before the first
    hash_ids          one for each block of the prompt, the last of which may be partial; a hash covers all before it.
                      Empty if unknown. They are planned, lengths are counted by a server: they may differ
    session, turn     lines of a session are contiguous, turns from 0 without gaps; sessions ascend, and so do
                      their start times
    input_length_estimated    true if not counted, else missing
    think_ms          pause between the previous response and this turn; missing if 0
    waits_for         turns of its session whose ends it waits for, earlier ones; missing if just the turn before
    tenant            group it belongs to; missing if empty
    conduct           how its client behaved, if not normal (`plan.Conduct`); a replay behaves normally
    body              the exact request body as text; missing if not recorded

A reader only needs `json.loads` of each line. Unlisted keys are ignored. Order of keys, spaces and number format are
fixed (those of Python's `json.dumps`, text not escaped beyond need): `write_recorded` reproduces a file read by
`RecordedTrace` byte for byte.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from loadgen import json_text
from loadgen.errors import TraceFormatError, explained
from loadgen.trace.lines import LONGEST_S, check_lengths, checked_ids, decoded, empty, numbered_lines, trace_error
from loadgen.trace.mooncake import milliseconds, mooncake_fields
from loadgen.trace.request import NORMAL, TraceRecord

SCHEMA = "loadgen-trace/1"


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line; see the module. `bytes_per_block`: 0 if no text was hashed."""

    schema: str = SCHEMA
    block_tokens: int
    hash_ids: Literal["given", "computed"] = "given"
    bytes_per_block: int = 0
    endpoint: str = ""
    requests: int


class _Line(msgspec.Struct, kw_only=True):
    """One request as written in the file."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    session: int
    turn: int = 0
    input_length_estimated: bool = False
    think_ms: float = 0.0
    waits_for: list[int] = []
    tenant: str = ""
    conduct: str = NORMAL
    body: str | None = None


_HEADER = json_text.Decoder(TraceHeader)
_DECODER = json_text.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """`Trace` of one file. `header`: its first line."""

    path: Path
    header: TraceHeader
    interleaved: bool = False
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def block_tokens(self) -> int:
        return self.header.block_tokens

    def requests(self) -> Iterator[TraceRecord]:
        """See `Trace`. Also raises if the number of lines differs from the header's."""
        before: _Line | None = None
        begun_ms = 0.0
        count = 0
        lines = numbered_lines(self.path)
        next(lines, None)
        for number, text in lines:
            line = decoded(self.path, number, text, _DECODER, "a request of a load generator's trace")
            check_lengths(self.path, number, line.input_length, line.output_length)
            ids = checked_ids(self.path, number, line.hash_ids)
            self._check_turn(number, line, before)
            earliest_ms = begun_ms if line.turn == 0 or before is None or line.waits_for else before.timestamp
            self._check_time(number, line, earliest_ms)
            begun_ms = line.timestamp if line.turn == 0 else begun_ms
            before = line
            count += 1
            yield TraceRecord(
                arrival_s=line.timestamp / 1000,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                hash_ids=ids,
                session=line.session,
                follows=line.turn > 0,
                think_s=line.think_ms / 1000,
                waits_for=tuple(line.waits_for),
                tenant=line.tenant,
                input_estimated=line.input_length_estimated,
                conduct=line.conduct,
                body=line.body,
            )
        if count != self.header.requests:
            raise TraceFormatError(
                f"{self.path}: the header says {self.header.requests} requests, there are {count}; record it again"
            )
        if not count:
            raise empty(self.path)

    def _check_turn(self, number: int, line: _Line, before: _Line | None) -> None:
        """Raises: TraceFormatError unless sessions ascend and are contiguous, with turns from 0 without gaps."""
        same = before is not None and before.session == line.session
        expected = before.turn + 1 if before is not None and same else 0
        if line.turn != expected:
            raise trace_error(
                self.path,
                number,
                f"turn {line.turn} of session {line.session} where turn {expected} belongs; keep a session's lines "
                "together and in order",
            )
        if line.waits_for and not 0 <= min(line.waits_for) <= max(line.waits_for) < line.turn:
            raise trace_error(self.path, number, f"waits_for {line.waits_for}: only earlier turns of its session")
        if before is not None and line.session < before.session:
            raise trace_error(self.path, number, f"session {line.session} after {before.session}; sessions ascend")

    def _check_time(self, number: int, line: _Line, before_ms: float) -> None:
        """Raises: TraceFormatError for a time or a pause that is none."""
        if line.think_ms < 0:
            raise trace_error(self.path, number, f"a pause of {line.think_ms:g} ms; pauses are not negative")
        if not 0 <= line.timestamp <= LONGEST_S * 1000:
            raise trace_error(
                self.path, number, f"an arrival at {line.timestamp / 1000:g} s; times count from 0, the run's start"
            )
        if line.timestamp < before_ms:
            raise trace_error(
                self.path,
                number,
                f"arrives at {line.timestamp / 1000:g} s, after a line that arrives at {before_ms / 1000:g} s; "
                "sort by time",
            )


def read_header(path: Path, line: bytes) -> TraceHeader:
    """The first line of a file that has a `schema`.

    Raises: TraceFormatError if it is of another version, or no header.
    """
    header = decoded(path, 1, line, _HEADER, "the header of a load generator's trace")
    if header.schema != SCHEMA:
        raise trace_error(path, 1, f"schema {header.schema!r}, this reads {SCHEMA!r}; record it again")
    if header.block_tokens < 1 or header.requests < 0:
        raise trace_error(path, 1, "block_tokens must be above 0 and requests not negative; record it again")
    return header


def write_recorded(path: Path, header: TraceHeader, requests: Iterable[TraceRecord]) -> None:
    """Write a trace file, whole or not at all. The requests of a session must be contiguous.

    Raises: OutputError if it cannot be written.
    Effects: replaces `path`.
    """
    write_lines(path, _lines(header, requests))


def _lines(header: TraceHeader, requests: Iterable[TraceRecord]) -> Iterator[str]:
    """The file's lines."""
    yield header_line(header)
    turn = 0
    for request in requests:
        turn = turn + 1 if request.follows else 0
        yield request_line(request, turn)


def header_line(header: TraceHeader) -> str:
    """The header as written in the file, without the end of the line."""
    fields = msgspec.structs.asdict(header)
    return _dumped({name: value for name, value in fields.items() if name != "bytes_per_block" or value})


def request_line(request: TraceRecord, turn: int) -> str:
    """A request as written in the file, without the end of the line."""
    fields: dict[str, object] = {**mooncake_fields(request), "session": request.session, "turn": turn}
    if request.input_estimated:
        fields["input_length_estimated"] = True
    if request.think_s:
        fields["think_ms"] = milliseconds(round(request.think_s * 1e6))
    if request.waits_for:
        fields["waits_for"] = list(request.waits_for)
    if request.tenant:
        fields["tenant"] = request.tenant
    if request.conduct != NORMAL:
        fields["conduct"] = request.conduct
    if request.body is not None:
        fields["body"] = request.body
    return _dumped(fields)


def _dumped(fields: dict[str, object]) -> str:
    return json.dumps(fields, ensure_ascii=False)


# Files that are written whole or not at all.


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines under a temporary name, then rename it.

    Raises: OutputError, and what making the lines raises; the temporary file is then removed.
    """
    temporary = path.with_name(path.name + ".part")
    try:
        with explained(path):
            with temporary.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{line}\n" for line in lines)
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
