"""Agents' conversations as kv-cache-tester ("Weka") publishes them: JSON lines, one conversation a line.

    {"id": "trace_0291", "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0.0, "type": "n", "in": 20245, "out": 168, "stop": "tool_use", "api_time": 4.2, "hash_ids": [1, 2, ...]},
        {"t": 57.1, "type": "subagent", "requests": [{"t": 0.0, "in": 9120, ...}, {"t": 7.0, ...}]},
        {"t": 61.5, "type": "s", "in": 21584, ...}]}

`t` counts seconds from the conversation's start; of a subagent, it is when its last response ended, and its own
requests count from its start. `api_time` is how long a response took. Ids cover 64 tokens and all in front of them, and
are local to the conversation unless `hash_id_scope` is "global". `hash_runs` [[1, 3], [7, 7]] are ids 1, 2, 3, 7. In
the published folder each conversation is a file of its own: `jq -c . traces/*.json` makes lines of them.

A conversation is a session whose requests wait for each other:

    turn 0 ──► turn 1 ─────────────────────────► turn 4        turn 1 calls two subagents (branches 1 and 2);
                  ├─ pause ─► turn 2 (branch 1) ──┤            turn 4 waits for turns 1, 2 and 3, then for its pause
                  └─ pause ─► turn 3 (branch 2) ──┘

A pause is the recorded time from the last of those ends to the start. The trace has no start times of conversations:
they are drawn as a Poisson process of `SESSIONS_PER_HOUR`, the same in every run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from loadgen import json_text
from loadgen.trace.draws import random_stream
from loadgen.trace.lines import (
    LARGEST_ID,
    LONGEST_S,
    check_count,
    check_lengths,
    checked_ids,
    decoded,
    empty,
    numbered_lines,
    trace_error,
)
from loadgen.trace.request import TraceRecord

SESSIONS_PER_HOUR = 60.0
"""Conversations that start in an hour, where no rate is given."""

_API_S, _API_TOKEN_S = 2.6, 0.0153
"""Assumed duration of a response without `api_time`. Source: least squares over 19,394 responses of the trace."""

_EXAMPLE = (
    'a conversation like {"id": "a", "block_size": 64, "requests": [{"t": 0.0, "in": 90, "out": 5, "api_time": 2.5, '
    '"hash_ids": [1]}]}'
)


class _Request(msgspec.Struct):
    """One entry of `requests`; keys that are not listed are ignored."""

    t: float
    type: str = "n"
    input_tokens: int = msgspec.field(default=0, name="in")
    output_tokens: int = msgspec.field(default=0, name="out")
    stop: str | None = None
    api_time: float | None = None
    think_time: float | None = None
    hash_ids: list[int] = []
    hash_runs: list[tuple[int, int]] = []
    requests: list["_Request"] = []


class _Line(msgspec.Struct):
    """One line; keys that are not listed are ignored."""

    id: str
    block_size: int
    requests: list[_Request]
    hash_id_scope: str = "local"


_DECODER = json_text.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class WekaTrace:
    """`Trace` of one file. `block_tokens`: the first line's; all lines have it."""

    path: Path
    block_tokens: int
    interleaved: bool = False
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def requests(self) -> Iterator[TraceRecord]:
        """See `Trace`. Memory: one conversation, and the names of all."""
        starts = random_stream(0, "weka/starts")
        names: set[str] = set()
        number, first_id, start_s = 0, 0, 0.0
        scope = ""
        counts = _Counts()
        for number, text in numbered_lines(self.path):
            line = decoded(self.path, number, text, _DECODER, _EXAMPLE)
            self._check(number, line, names, scope or line.hash_id_scope)
            names.add(line.id)
            scope = line.hash_id_scope
            reader = _Conversation(self, number, line, start_s, first_id if scope == "local" else 0, counts)
            yield from reader.records()
            self.notes.update(counts.notes(len(names)))
            first_id = reader.largest_id + 1
            start_s += float(starts.exponential(3600 / SESSIONS_PER_HOUR))
        if not number:
            raise empty(self.path)

    def _check(self, number: int, line: _Line, names: set[str], scope: str) -> None:
        """Raises: TraceFormatError for a conversation that does not fit those in front of it, or has no request."""
        problem = ""
        if line.id in names:
            problem = f"conversation {line.id!r} for the second time; rename it"
        elif line.block_size != self.block_tokens:
            problem = f"blocks of {line.block_size} tokens, after {self.block_tokens}; keep them in separate files"
        elif line.hash_id_scope not in ("local", "global") or line.hash_id_scope != scope:
            problem = f"hash_id_scope {line.hash_id_scope!r}; every line has 'local', or every line 'global'"
        elif not line.requests:
            problem = f"conversation {line.id!r} has no requests; remove the line"
        if problem:
            raise trace_error(self.path, number, problem)


@dataclass(slots=True)
class _Counts:
    """Counts of what the reader had to make sense of."""

    assumed: int = 0
    empty_branches: int = 0

    def notes(self, conversations: int) -> dict[str, str]:
        """One sentence for each kind that occurred."""
        found = {
            "starts": f"no start times of conversations: {conversations:,} were drawn at "
            f"{SESSIONS_PER_HOUR:g} an hour; scale or replace the rate"
        }
        if self.assumed:
            found["api_time"] = (
                f"responses without api_time, taken to last {_API_S:g} s and {1 / _API_TOKEN_S:.0f} tokens/s: "
                f"{self.assumed:,}"
            )
        if self.empty_branches:
            found["branches"] = f"subagents without a request, left out: {self.empty_branches:,}"
        return found


class _Conversation:
    """Converts one line. `largest_id`: of the ids handed on so far."""

    def __init__(
        self, trace: WekaTrace, number: int, line: _Line, start_s: float, first_id: int, counts: _Counts
    ) -> None:
        """`first_id`: added to every id."""
        self._trace = trace
        self._number = number
        self._line = line
        self._start_s = start_s
        self._first_id = first_id
        self._counts = counts
        self._due_s: list[float] = []
        """Arrival of each turn so far if responses took no time."""
        self._ends: list[tuple[int, float]] = []
        self._branches = 0
        self.largest_id = first_id - 1

    def records(self) -> Iterator[TraceRecord]:
        """The conversation's requests, each after those that it waits for.

        Raises: TraceFormatError naming the line.
        """
        yield from self._part(self._line.requests, 0.0, 0, None)

    def _part(
        self, requests: list[_Request], origin_s: float, branch: int, parent: tuple[int, float] | None
    ) -> Iterator[TraceRecord]:
        """The requests of the main line or of a branch, with its own branches.

        Args:
            origin_s: when its `t` count from. parent: turn that called it, and its recorded end; None = the main line.
        Effects: `_ends` are then the last turns of it, with their recorded ends.
        """
        before, begun_s = parent, 0.0
        joins: list[tuple[int, float]] = []
        for place, one in enumerate(requests):
            self._check_times(one, place)
            if one.type == "subagent":
                if before is None:
                    raise self._error(place, "a subagent without a request in front of it that called it")
                if not one.requests:
                    self._counts.empty_branches += 1
                    continue
                self._branches += 1
                started_s = max(before[1], origin_s + one.t - self._span_s(one.requests))
                yield from self._part(one.requests, started_s, self._branches, before)
                joins += self._ends
                continue
            if one.t < begun_s:
                raise self._error(place, f"starts at {one.t:g} s, before the one in front of it at {begun_s:g} s")
            begun_s = one.t
            waits = [*dict.fromkeys([*([] if before is None else [before]), *joins])]
            yield self._record(one, place, origin_s + one.t, branch, waits)
            before, joins = (len(self._due_s) - 1, origin_s + one.t + self._api_s(one)), []
        self._ends = [*([] if before is None else [before]), *joins]

    def _record(
        self, one: _Request, place: int, started_s: float, branch: int, waits: list[tuple[int, float]]
    ) -> TraceRecord:
        """One request. Effects: counts it."""
        path, number = self._trace.path, self._number
        check_lengths(path, number, one.input_tokens, one.output_tokens)
        if one.hash_runs:
            one.hash_ids = self._of_runs(one, place)
        ids = checked_ids(path, number, one.hash_ids)
        check_count(path, number, one.input_tokens, len(ids), self._trace.block_tokens)
        if ids and self._first_id:
            ids = [identity + self._first_id for identity in ids]
        self.largest_id = max(self.largest_id, max(ids, default=-1))
        if self.largest_id > LARGEST_ID:
            raise trace_error(path, number, "hash_ids are too large to be kept apart from other conversations'")
        self._counts.assumed += one.api_time is None
        turn = len(self._due_s)
        think_s = max(0.0, started_s - max(end_s for _, end_s in waits)) if waits else 0.0
        due_s = max((self._due_s[wait] for wait, _ in waits), default=self._start_s) + think_s
        self._due_s.append(due_s)
        only_before = [wait for wait, _ in waits] == [turn - 1]
        return TraceRecord(
            arrival_s=due_s,
            input_tokens=one.input_tokens,
            output_tokens=one.output_tokens,
            hash_ids=ids,
            session=self._line.id,
            follows=bool(waits),
            think_s=think_s,
            waits_for=() if only_before else tuple(wait for wait, _ in waits),
            branch=branch,
            stop=one.stop or "",
        )

    def _of_runs(self, one: _Request, place: int) -> list[int]:
        """Ids of runs, both ends included."""
        blocks = -(-one.input_tokens // self._trace.block_tokens)
        if any(first > last for first, last in one.hash_runs):
            raise self._error(place, "a run of hash_runs ends before it begins")
        if sum(last - first + 1 for first, last in one.hash_runs) > blocks:
            raise self._error(place, f"hash_runs of more than the {blocks} blocks of {one.input_tokens} tokens")
        return [identity for first, last in one.hash_runs for identity in range(first, last + 1)]

    def _check_times(self, one: _Request, place: int) -> None:
        """Raises: TraceFormatError for a time that is negative or implausible."""
        for name, value in (("t", one.t), ("api_time", one.api_time), ("think_time", one.think_time)):
            if value is not None and not 0 <= value <= LONGEST_S:
                raise self._error(place, f"{name} of {value:g} s; times are not negative, nor above {LONGEST_S:g} s")

    def _span_s(self, requests: list[_Request]) -> float:
        """Recorded time from a branch's start to its last end [s]."""
        return max(one.t + (0.0 if one.type == "subagent" else self._api_s(one)) for one in requests)

    @staticmethod
    def _api_s(one: _Request) -> float:
        return _API_S + _API_TOKEN_S * one.output_tokens if one.api_time is None else one.api_time

    def _error(self, place: int, problem: str) -> Exception:
        return trace_error(self._trace.path, self._number, f"entry {place} of {self._line.id}: {problem}")
