"""The load generator's own trace file: what a run asked, to be asked again here.

The first line is a header (`schema`, `block_tokens`, `requests`), each other line is a Mooncake line with a `session`,
a `turn` and a pause `think_ms`; lines of one session stand together. Of a later turn, `timestamp` says when it would
come if answers took no time, so that pauses are in it already and only the answers' time is added (see `turns`).

Prompt lengths are what a server counted, ids what the workload planned: where a chat template made a prompt longer,
ids cover its leading blocks only; where there are too many, the rest is dropped. Bodies are not read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serving.sim.workload.columns import Columns, Row, batches_of
from serving.sim.workload.errors import TraceError, trace_error
from serving.sim.workload.lines import check_lengths, check_time, decoded, empty, numbered_lines
from serving.sim.workload.mooncake import check_ids
from serving.sim.workload.turns import in_order

SCHEMA = "loadgen-trace/1"


class RecordedHeader(msgspec.Struct):
    """The first line; keys that are not listed are ignored."""

    schema: str
    block_tokens: int
    requests: int


class _Line(msgspec.Struct):
    """One request; keys that are not listed are ignored."""

    timestamp: float
    input_length: int
    output_length: int
    session: int
    turn: int = 0
    hash_ids: list[int] = []


_HEADER = msgspec.json.Decoder(RecordedHeader)
_DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """Reader of one file.

    Attributes:
        block_tokens: as the header says. requests: lines that the header promises.
        token_s: time that each token of an answer takes before the next turn's pause begins [s].
    """

    path: Path
    block_tokens: int
    requests: int
    token_s: float = 0.0

    def batches(self) -> Iterator[Columns]:
        """The requests.

        Raises: TraceError naming the line that is no request, or does not follow from the one in front of it; or if
            there are fewer or more lines than the header says.
        """
        return batches_of(in_order(self._turns()))

    def _turns(self) -> Iterator[tuple[bool, Row]]:
        """Each line, and whether it begins a session."""
        before: _Line | None = None
        begun_s = answers_s = 0.0
        count = 0
        lines = numbered_lines(self.path)
        next(lines, None)
        for number, text in lines:
            line = decoded(self.path, number, text, _DECODER, "a request of a load generator's trace")
            # A cut answer is recorded as 0 tokens; a replay asks for one, as the load generator's does.
            line.output_length = line.output_length or 1
            check_lengths(self.path, number, line.input_length, line.output_length)
            check_ids(self.path, number, line.hash_ids)
            self._check_turn(number, line, before)
            begins = line.turn == 0
            before_s = begun_s if begins or before is None else before.timestamp / 1000
            check_time(self.path, number, line.timestamp / 1000, before_s)
            if begins:
                begun_s, answers_s = line.timestamp / 1000, 0.0
            del line.hash_ids[-(-line.input_length // self.block_tokens) :]
            yield begins, (line.timestamp / 1000 + answers_s, line.input_length, line.output_length, line.hash_ids)
            answers_s += line.output_length * self.token_s
            before = line
            count += 1
        self._check_count(count)

    def _check_turn(self, number: int, line: _Line, before: _Line | None) -> None:
        """Raises: TraceError unless sessions stand together, with turns from 0 without gaps."""
        same = before is not None and before.session == line.session
        expected = before.turn + 1 if before is not None and same else 0
        if line.turn != expected:
            raise trace_error(
                self.path,
                number,
                f"turn {line.turn} of session {line.session} where turn {expected} belongs; keep a session's lines "
                "together and in order",
            )

    def _check_count(self, count: int) -> None:
        """Raises: TraceError."""
        if count != self.requests:
            raise TraceError(
                f"{self.path}: the header says {self.requests} requests, there are {count}; record it again"
            )
        if not count:
            raise empty(self.path)


def read_header(path: Path, line: bytes) -> RecordedHeader:
    """The first line of a file that has a `schema`.

    Raises: TraceError if it is of another version, or no header.
    """
    header = decoded(path, 1, line, _HEADER, "the header of a load generator's trace")
    if header.schema != SCHEMA:
        raise trace_error(path, 1, f"schema {header.schema!r}, this reads {SCHEMA!r}; record it again")
    if header.block_tokens < 1 or header.requests < 0:
        raise trace_error(path, 1, "block_tokens must be above 0 and requests not negative; record it again")
    return header
