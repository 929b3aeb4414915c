"""A Mooncake trace as the simulation needs it: when, how long, and which blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path

from loadgen.trace import open_trace
from loadgen.trace.mooncake import MOONCAKE_BLOCK_TOKENS as BLOCK_TOKENS
from serving.ids import BlockHash


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. `blocks` are prefix hashes of 512 tokens each; the last one may stand for fewer."""

    arrival_s: float
    tokens: int
    blocks: tuple[BlockHash, ...]

    def tokens_in(self, blocks: int) -> int:
        """Tokens of the leading blocks."""
        return min(blocks * BLOCK_TOKENS, self.tokens)


@dataclass(frozen=True, slots=True)
class Ideal:
    """What a cache could do that holds everything and knows each prompt the moment it arrives."""

    unique_blocks: int
    block_share: float
    """Of all blocks asked for: the figure usually quoted for a trace."""
    token_share: float
    """Of all prompt tokens: the last block of a prompt is often partial, and rarely one that repeats."""


def read_trace(path: Path, speed: float = 1.0, limit: int | None = None) -> list[Request]:
    """Requests in order of arrival.

    Args:
        speed: 2 = all gaps half as long.
        limit: only so many, from the start.
    Raises: TraceFormatError if the file cannot be read or holds nothing, or naming the line that is no request.
    """
    return [
        Request(one.arrival_s / speed, one.input_tokens, tuple(map(_hash, one.hash_ids)))
        for one in islice(open_trace(path).requests(), limit)
    ]


def ideal(requests: Sequence[Request]) -> Ideal:
    """Hit rates of an infinite cache without delay."""
    seen: set[BlockHash] = set()
    blocks = hits = tokens = hit_tokens = 0
    for request in requests:
        matched = next((i for i, one in enumerate(request.blocks) if one not in seen), len(request.blocks))
        seen.update(request.blocks)
        blocks += len(request.blocks)
        hits += matched
        tokens += request.tokens
        hit_tokens += request.tokens_in(matched)
    return Ideal(len(seen), hits / max(1, blocks), hit_tokens / max(1, tokens))


@cache
def _hash(number: int) -> BlockHash:
    """Ids of a trace count up; the ring needs digests, which spread."""
    return BlockHash(blake2b(number.to_bytes(8, "little"), digest_size=16).digest())
