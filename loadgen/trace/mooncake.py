"""Traces as Mooncake publishes them: JSON lines with arrival, lengths and the hashes of the prompt's blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2353, 2354]}

`timestamp` counts milliseconds; each hash id covers 512 tokens of the prompt, the last of which may be fewer. A hash
covers all tokens before it. Lines with a `session_id` may be later turns, with a `delay` [ms] after the previous
response in place of a timestamp; their lengths and ids are those of the whole prompt.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadgen import json_text
from loadgen.trace.lines import (
    TraceTimes,
    check_count,
    check_lengths,
    checked_ids,
    decoded,
    empty,
    numbered_lines,
    trace_error,
)
from loadgen.trace.request import TraceRecord

MOONCAKE_BLOCK_TOKENS = 512
"""Block size of the published traces. Source: the trace's documentation, and every line of it."""

_EXAMPLE = 'a request like {"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [0]}'


class _Line(msgspec.Struct):
    """One line; keys that are not listed are ignored."""

    input_length: int
    output_length: int
    timestamp: float | str | None = None
    hash_ids: list[int] = []
    session_id: str | int | None = None
    delay: float | None = None


_DECODER = json_text.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class MooncakeTrace:
    """`Trace` of one file. `block_tokens`: tokens per hash id."""

    path: Path
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    interleaved: bool = True
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def requests(self) -> Iterator[TraceRecord]:
        path, block_tokens = self.path, self.block_tokens
        seconds = TraceTimes(path, self.notes, per_s=1000.0).seconds
        due_s: dict[str | int, float] = {}
        number, think_s = 0, 0.0
        for number, text in numbered_lines(path):
            line = decoded(path, number, text, _DECODER, _EXAMPLE)
            check_lengths(path, number, line.input_length, line.output_length)
            ids = checked_ids(path, number, line.hash_ids)
            check_count(path, number, line.input_length, len(ids), block_tokens)
            follows = line.timestamp is None
            if line.timestamp is not None:
                arrival_s, think_s = seconds(number, line.timestamp), 0.0
            else:
                arrival_s, think_s = self._later(number, line, due_s)
            if line.session_id is not None:
                due_s[line.session_id] = arrival_s
            yield TraceRecord(
                arrival_s=arrival_s,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                hash_ids=ids,
                session=line.session_id,
                follows=follows,
                think_s=think_s,
            )
        if not number:
            raise empty(path)

    def _later(self, number: int, line: _Line, due_s: dict[str | int, float]) -> tuple[float, float]:
        """Arrival of a turn without its own time if responses took no time, and its pause [s].

        Raises: TraceFormatError if it follows no request.
        """
        if line.session_id is None or line.session_id not in due_s:
            raise trace_error(
                self.path, number, "no timestamp, and no turn of its session_id in front of it; give it a timestamp"
            )
        delay = line.delay or 0.0
        if not 0 <= delay < float("inf"):
            raise trace_error(self.path, number, f"a delay of {delay:g} ms; pauses are not negative")
        return due_s[line.session_id] + delay / 1000, delay / 1000


def milliseconds(time_us: int) -> int | float:
    """Microseconds as milliseconds: a whole number if it is one, else with three decimals at most."""
    return time_us // 1000 if time_us % 1000 == 0 else time_us / 1000


def mooncake_fields(request: TraceRecord) -> dict[str, object]:
    return {
        "timestamp": milliseconds(round(request.arrival_s * 1e6)),
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
        "hash_ids": request.hash_ids,
    }


def mooncake_line(request: TraceRecord) -> str:
    """A request as a line of a Mooncake trace, byte for byte in their form."""
    fields = mooncake_fields(request)
    if request.follows:
        del fields["timestamp"]
        fields["delay"] = milliseconds(round(request.think_s * 1e6))
    if request.session is not None:
        fields["session_id"] = request.session
    return json.dumps(fields, ensure_ascii=False)
