"""Traces as Mooncake publishes them: JSON lines with arrival, lengths and the hashes of the prompt's blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2353, 2354]}

`timestamp` counts milliseconds; one hash id stands for each 512 tokens of the prompt, the last of which may be fewer.
A hash covers all tokens in front of it. Lines with a `session_id` may be later turns, with a `delay` [ms] after the
answer before them in place of a timestamp (see `turns`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serving.sim.workload.columns import LARGEST_ID, Columns, Row, batches_of
from serving.sim.workload.errors import trace_error
from serving.sim.workload.lines import check_lengths, check_time, decoded, empty, numbered_lines
from serving.sim.workload.turns import in_order

BLOCK_TOKENS = 512
"""Of the published traces. Source: the trace's documentation, and every line of it."""

_USUAL_BLOCKS = (16, 32, 64, 128, 256)
"""Of other publishers' traces."""

_EXAMPLE = 'a request like {"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [0]}'


class MooncakeLine(msgspec.Struct):
    """One line; keys that are not listed are ignored."""

    input_length: int
    output_length: int
    timestamp: float | None = None
    hash_ids: list[int] = []
    session_id: str | int | None = None
    delay: float | None = None


_DECODER = msgspec.json.Decoder(MooncakeLine)


@dataclass(frozen=True, slots=True)
class MooncakeTrace:
    """Reader of one file.

    Attributes:
        token_s: time that each token of an answer takes before the next turn's pause begins [s].
    """

    path: Path
    token_s: float = 0.0
    block_tokens: int = BLOCK_TOKENS

    def batches(self) -> Iterator[Columns]:
        """The requests.

        Raises: TraceError naming the line that is no request, or comes too early.
        """
        return batches_of(in_order(self._turns()))

    def _turns(self) -> Iterator[tuple[bool, Row]]:
        """Each line, and whether it has a time of its own."""
        before_s = 0.0
        free_at_s: dict[str | int, float] = {}
        number = 0
        for number, text in numbered_lines(self.path):
            line = decoded(self.path, number, text, _DECODER, _EXAMPLE)
            check_lengths(self.path, number, line.input_length, line.output_length)
            check_ids(self.path, number, line.hash_ids)
            self._check_count(number, line)
            begins = line.timestamp is not None
            if line.timestamp is not None:
                arrival_s = line.timestamp / 1000
                check_time(self.path, number, arrival_s, before_s)
                before_s = arrival_s
            else:
                arrival_s = self._later(number, line, free_at_s)
            if line.session_id is not None:
                free_at_s[line.session_id] = arrival_s + line.output_length * self.token_s
            yield begins, (arrival_s, line.input_length, line.output_length, line.hash_ids)
        if not number:
            raise empty(self.path)

    def _later(self, number: int, line: MooncakeLine, free_at_s: dict[str | int, float]) -> float:
        """When a turn without a time of its own arrives [s].

        Raises: TraceError if it follows on nothing.
        """
        if line.session_id is None or line.session_id not in free_at_s:
            raise trace_error(
                self.path, number, "no timestamp, and no turn of its session_id in front of it; give it a timestamp"
            )
        delay = line.delay or 0.0
        if not 0 <= delay < float("inf"):
            raise trace_error(self.path, number, f"a delay of {delay:g} ms; pauses are not negative")
        return free_at_s[line.session_id] + delay / 1000

    def _check_count(self, number: int, line: MooncakeLine) -> None:
        """Raises: TraceError unless ids cover the prompt, the last block of which they may leave out if it is partial.

        Without ids nothing is known of the prompt, which is allowed.
        """
        whole, rest = divmod(line.input_length, self.block_tokens)
        if line.hash_ids and len(line.hash_ids) not in (whole, whole + (rest > 0)):
            raise trace_error(
                self.path,
                number,
                f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens; blocks of {self.block_tokens} tokens "
                f"make it {whole + (rest > 0)}, or none if nothing is known{_other_blocks(line)}",
            )


def _other_blocks(line: MooncakeLine) -> str:
    """What to do if the ids were counted in blocks of another usual size, as Bailian's traces are (16 tokens)."""
    fitting = [size for size in _USUAL_BLOCKS if len(line.hash_ids) == -(-line.input_length // size)]
    if not fitting:
        return ""
    return (
        f". It looks like a trace with blocks of {fitting[0]} tokens: as they are prefix hashes, keep one id "
        f"in {BLOCK_TOKENS // fitting[0]}, the last of each run, and the last of all"
    )


def check_ids(path: Path, number: int, ids: list[int]) -> None:
    """Raises: TraceError for ids that are negative or too large."""
    if ids and (min(ids) < 0 or max(ids) > LARGEST_ID):
        raise trace_error(path, number, "hash_ids must lie between 0 and 2^63-1; number them anew")
