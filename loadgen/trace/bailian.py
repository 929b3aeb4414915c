"""Qwen-Bailian's usage traces: JSON lines with arrival, lengths, chats, and hashes of blocks of 16 tokens.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, 1091, 6326, ..., 13148]}

`timestamp` counts seconds from the start; a later turn has the whole prompt and a time of its own, so that no request
waits for another. `parent_chat_id` is -1 for the first turn of a chat. A hash covers its own block alone: the ids that
are handed on are hashes of all ids up to there, so that here, too, equal ids at equal places mean equal prefixes.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen import json_text
from loadgen.trace.lines import TraceTimes, check_count, check_lengths, checked_ids, decoded, empty, numbered_lines
from loadgen.trace.request import TraceRecord

BAILIAN_BLOCK_TOKENS = 16
"""Block size of the published traces, which is part of their names."""

_EXAMPLE = (
    'a request like {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 9, "output_length": 5, '
    '"type": "text", "turn": 1, "hash_ids": [0]}'
)


class _Line(msgspec.Struct):
    """One line; keys that are not listed are ignored."""

    chat_id: int
    timestamp: float | str
    input_length: int
    output_length: int
    parent_chat_id: int = -1
    hash_ids: list[int] = []


_DECODER = json_text.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class BailianTrace:
    """Reader of one file. `block_tokens`: tokens per hash id."""

    path: Path
    block_tokens: int = BAILIAN_BLOCK_TOKENS
    interleaved: bool = False
    notes: dict[str, str] = field(default_factory=dict, compare=False)

    def requests(self) -> Iterator[TraceRecord]:
        """See `Trace`. Memory: two numbers for each chat."""
        seconds = TraceTimes(self.path, self.notes).seconds
        hasher = PrefixHasher()
        roots: dict[int, int] = {}
        number = 0
        for number, text in numbered_lines(self.path):
            line = decoded(self.path, number, text, _DECODER, _EXAMPLE)
            check_lengths(self.path, number, line.input_length, line.output_length)
            ids = checked_ids(self.path, number, line.hash_ids)
            check_count(self.path, number, line.input_length, len(ids), self.block_tokens)
            root = roots[line.chat_id] = roots.get(line.parent_chat_id, line.chat_id)
            yield TraceRecord(
                arrival_s=seconds(number, line.timestamp),
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                hash_ids=hasher.prefixes(ids),
                session=root,
            )
        if not number:
            raise empty(self.path)


class PrefixHasher:
    """Makes hashes of prefixes from hashes of blocks: 63 bits of a polynomial in the blocks' hashes, all mixed."""

    def __init__(self) -> None:
        self._powers: npt.NDArray[np.uint64] = np.ones(1, np.uint64)

    def prefixes(self, ids: list[int]) -> list[int]:
        """For each block a hash of it and all in front of it."""
        if not ids:
            return []
        while len(self._powers) < len(ids):
            last = self._powers[-1:] * _BASE  # an array: NumPy warns where a single number wraps round
            self._powers = np.concatenate((self._powers, self._powers * last))
        terms = _mixed(np.array(ids, np.uint64)) * self._powers[: len(ids)]
        found: list[int] = (_mixed(np.cumsum(terms, dtype=np.uint64)) >> np.uint64(1)).tolist()
        return found


_BASE = np.uint64(0x9E37_79B9_7F4A_7C15)
"""Odd, so that no power of it is 0 modulo 2^64. Source: the golden ratio, after Knuth."""


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each value spread over all bits. Source: SplitMix64 (Steele, Lea, Flood 2014)."""
    mixed = values + _BASE
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return mixed ^ (mixed >> np.uint64(31))


def bailian_lines(requests: Iterable[TraceRecord]) -> Iterator[str]:
    """A trace as lines of this format. Memory: the last chat of each session."""
    chats: dict[int | str, tuple[int, int]] = {}
    for chat, request in enumerate(requests):
        parent, turn = (-1, 0) if request.session is None else chats.get(request.session, (-1, 0))
        if request.session is not None:
            chats[request.session] = chat, turn + 1
        fields = {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": round(request.arrival_s, 6),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "type": "text",
            "turn": turn + 1,
            "hash_ids": request.hash_ids,
        }
        yield json.dumps(fields)
