"""Agents' sessions as TraceLab publishes them, one call of a model a line: JSON lines, or the CSV of its replay.

    {"session_id": "claude:92ee", "project": "p1", "round_index": 1, "prefix_tokens": 29380,
     "newly_append_tokens": 6360, "output_tokens": 1016, "tools": [{"tool_wall_latency_ms": 12688}], "timing_events": [
        {"event_type": "tool_result", "timestamp": "2026-06-01T05:40:50.938Z"},
        {"event_type": "tool_call", "timestamp": "2026-06-01T05:41:04.862Z"}]}

    session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms

A prompt has `prefix_tokens` (read from the provider's cache) and `newly_append_tokens`. A session is the lines of a
project with one `session_id`, by `round_index` (which may repeat), then by place in the file. A call starts with its
last `user_message` or `tool_result` and ends with its last other event; the pause in front of it is the time since the
call before it ended. Without events, as in the CSV, the pause is the sum of the tools' latencies after the call before.

The trace has no hashes. Prefixes are assumed from the order of a session's calls:

    prompt at least as long as the one before     it repeats all of that one
    shorter: a history that was compacted         it repeats `prefix_tokens`, no more than that one had
    prompts of different sessions                 they share nothing

Ids are made from that, `TRACELAB_BLOCK_TOKENS` or `--block-tokens` tokens each; a block that is not full has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from loadgen.trace.lines import LONGEST_S, check_lengths, empty, json_lines, trace_error
from loadgen.trace.request import TraceRecord
from loadgen.trace.tables import csv_rows

TRACELAB_BLOCK_TOKENS = 64
"""Tokens of a block where none are given, as in the other trace of agents."""
TRACELAB_COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
"""Columns of the CSV beside the session's, which is `session_id` or `id`, and `arrival_time` [ms], which may miss."""

_INPUTS = frozenset({"user_message", "tool_result"})
_Count = Annotated[int, msgspec.Meta(ge=0)]
_EXAMPLE = (
    'a call like {"session_id": "a", "round_index": 0, "prefix_tokens": 0, "newly_append_tokens": 90, '
    '"output_tokens": 5, "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}]}'
)


class _Event(msgspec.Struct):
    event_type: str
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)]


class _Tool(msgspec.Struct):
    tool_wall_latency_ms: float | None = None


class _Line(msgspec.Struct):
    """One line; keys that are not listed are ignored."""

    session_id: str
    round_index: _Count
    prefix_tokens: _Count
    newly_append_tokens: _Count
    output_tokens: _Count
    project: str | None = None
    timing_events: list[_Event] = []
    tools: list[_Tool] = []


class _Call(NamedTuple):
    """One call. `started_s`, `ended_s`: None = not recorded. `wait_s`: of the tools after it."""

    line: int
    place: int
    cached_tokens: int
    input_tokens: int
    output_tokens: int
    started_s: float | None
    ended_s: float | None
    wait_s: float
    stop: str


_Sessions = dict[tuple[str, str], list[_Call]]


@dataclass(frozen=True, slots=True)
class TraceLabTrace:
    """`Trace` of one file. `table`: whether it is the CSV."""

    path: Path
    block_tokens: int = TRACELAB_BLOCK_TOKENS
    table: bool = False
    interleaved: bool = False
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def requests(self) -> Iterator[TraceRecord]:
        """See `Trace`. Sessions by their start. Memory: the figures of all calls."""
        sessions: _Sessions = {}
        for key, call in self._rows() if self.table else self._lines():
            check_lengths(self.path, call.line, call.input_tokens, call.output_tokens)
            sessions.setdefault(key, []).append(call)
        if not sessions:
            raise empty(self.path)
        starts_s = {key: self._begun_s(calls) for key, calls in sessions.items()}
        first_s = min(starts_s.values())
        self.notes["prefixes"] = (
            "no hashes of prompts: a prompt is taken to repeat the one before it in its session, and one that is "
            "shorter to repeat its recorded prefix"
        )
        first_id = 0
        for key in sorted(sessions, key=lambda one: starts_s[one]):
            reader = _Session(self, "/".join(filter(None, key)), starts_s[key] - first_s, first_id)
            for call in sessions.pop(key):
                yield reader.record(call)
            first_id = reader.next_id

    def _lines(self) -> Iterator[tuple[tuple[str, str], _Call]]:
        """The calls of JSON lines, with the project and name of their session."""
        for number, line in json_lines(self.path, _Line, _EXAMPLE):
            inputs = [one.timestamp.timestamp() for one in line.timing_events if one.event_type in _INPUTS]
            outputs = [one.timestamp.timestamp() for one in line.timing_events if one.event_type not in _INPUTS]
            started_s = max(inputs) if inputs else min(outputs, default=None)
            waits_ms = [tool.tool_wall_latency_ms or 0.0 for tool in line.tools]
            if any(not 0 <= wait <= LONGEST_S * 1000 for wait in waits_ms):
                raise trace_error(self.path, number, f"tool_wall_latency_ms of {min(waits_ms):g}; that is no duration")
            yield (
                (line.project or "", line.session_id),
                _Call(
                    number,
                    line.round_index,
                    line.prefix_tokens,
                    line.prefix_tokens + line.newly_append_tokens,
                    line.output_tokens,
                    started_s,
                    max(outputs, default=started_s),
                    sum(waits_ms) / 1000,
                    "tool_use" if line.tools else "end_turn",
                ),
            )

    def _rows(self) -> Iterator[tuple[tuple[str, str], _Call]]:
        """The calls of a CSV, with the name of their session."""
        for number, row in csv_rows(self.path, TRACELAB_COLUMNS, ("session_id", "id", "arrival_time")):
            try:
                index, cached, new, output = (int(row[name]) for name in TRACELAB_COLUMNS[:4])
                wait_s, at_s = float(row["tool_wait_after_ms"]) / 1000, float(row.get("arrival_time") or 0.0) / 1000
            except ValueError as error:
                raise trace_error(self.path, number, f"not a line of {','.join(TRACELAB_COLUMNS)} ({error})") from None
            session = row.get("session_id") or row.get("id")
            if not session:
                raise trace_error(self.path, number, "no session_id (or id)")
            if min(index, cached, new) < 0 or not 0 <= wait_s <= LONGEST_S or not 0 <= at_s <= LONGEST_S:
                raise trace_error(self.path, number, "a length, place or time that is negative or too large")
            stop = "tool_use" if wait_s else "end_turn"
            yield ("", session), _Call(number, index, cached, cached + new, output, at_s, None, wait_s, stop)

    def _begun_s(self, calls: list[_Call]) -> float:
        """Start of a session [s]. Effects: sorts its calls.

        Raises: TraceFormatError if it is not recorded.
        """
        calls.sort(key=lambda one: one.place)
        if calls[0].started_s is None:
            raise trace_error(self.path, calls[0].line, "no timing_events in a session's first call: no start is known")
        return calls[0].started_s


class _Session:
    """Converts the calls of one session. `next_id`: first id that is not used yet."""

    def __init__(self, trace: TraceLabTrace, name: str, start_s: float, first_id: int) -> None:
        self._trace = trace
        self._name = name
        self._due_s = start_s
        self._before: _Call | None = None
        self._ids: list[int] = []
        """Of the prompt before."""
        self.next_id = first_id

    def record(self, call: _Call) -> TraceRecord:
        """The next call of the session.

        Raises: TraceFormatError for a start that is implausibly late.
        """
        before, self._before = self._before, call
        think_s = 0.0 if before is None else _pause_s(before, call)
        self._due_s += think_s
        if self._due_s > LONGEST_S:
            days = self._due_s / 86_400
            raise trace_error(self._trace.path, call.line, f"starts {days:.0f} days after the first call")
        return TraceRecord(
            arrival_s=self._due_s,
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            hash_ids=self._blocks(before, call),
            session=self._name,
            follows=before is not None,
            think_s=think_s,
            stop=call.stop,
        )

    def _blocks(self, before: _Call | None, call: _Call) -> list[int]:
        """Ids of its full blocks. Effects: they are the session's newest."""
        kept = 0
        if before is not None:
            grown = call.input_tokens >= before.input_tokens
            shared = before.input_tokens if grown else call.cached_tokens
            kept = min(shared // self._trace.block_tokens, len(self._ids))
        new = max(0, call.input_tokens // self._trace.block_tokens - kept)
        self._ids = [*self._ids[:kept], *range(self.next_id, self.next_id + new)]
        self.next_id += new
        return self._ids


def _pause_s(before: _Call, call: _Call) -> float:
    """Time between two calls [s]: as recorded, or else that of the tools."""
    if before.ended_s is None or call.started_s is None:
        return before.wait_s
    return max(0.0, call.started_s - before.ended_s)
