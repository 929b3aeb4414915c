"""Conversion of a trace's prefix ids to the names of an engine's KV blocks.

A trace cuts prompts into blocks of T tokens, an engine into blocks of E. Engine block j is equal in two prompts if the
trace block with its last token is, because an id identifies the whole prefix up to its block:

    trace, T = 6    |     a     |     b     |     c     |
    engine, E = 4   |   0   |   1   |   2   |   3   |      named by  a0  b1  b2  c3

so a name is a digest of that id, its position and j. If E divides T, an id gives T / E names and no information is
lost; if T divides E, every E / T-th id gives one; otherwise a block that spans two ids depends on the second one.
Blocks after the last id, and prompts without ids, get unique names.
"""

from hashlib import blake2b
from itertools import chain
from struct import Struct

from serving.errors import ConfigError
from serving.ids import BlockHash
from serving.values.prefix_hash import HASH_BYTES

_NAMES_PER_DIGEST = 4
_FOUR_NAMES = Struct(f"{HASH_BYTES}s" * _NAMES_PER_DIGEST).unpack
_KEY = Struct("<QQQ").pack

REMEMBERED_IDS = 1 << 16
"""Ids whose names are cached. Naming an id again takes 0.5 µs, so this only bounds memory: 50 MB."""


class BlockNames:
    """Names the full KV blocks of a trace's prompts.

    Two generations bound the cache without tracking uses: a used entry moves to the young generation, and when that is
    full, the old one is dropped.
    """

    def __init__(self, trace_block_tokens: int, block_tokens: int, *, remembered: int = REMEMBERED_IDS) -> None:
        """
        Args:
            trace_block_tokens: tokens per id. block_tokens: tokens per block of the engine.
            remembered: ids in each of the two generations.
        Raises: ConfigError if a size is below 1.
        """
        if trace_block_tokens < 1 or block_tokens < 1 or remembered < 1:
            raise ConfigError(f"blocks of {trace_block_tokens} and {block_tokens} tokens: both must be above 0")
        self._trace_tokens = trace_block_tokens
        self._tokens = block_tokens
        self._remembered = remembered
        self._young: dict[tuple[int, int], tuple[BlockHash, ...]] = {}
        self._old: dict[tuple[int, int], tuple[BlockHash, ...]] = {}
        self._shared = blake2b(digest_size=64, person=b"trace prefix id")
        self._own = blake2b(digest_size=64, person=b"trace request")

    def names(self, prompt_tokens: int, blocks: tuple[int, ...], number: int) -> tuple[BlockHash, ...]:
        """Names of the prompt's full engine blocks, in order.

        Args:
            blocks: prefix ids of the prompt's leading blocks, as `TraceRequest.blocks`.
            number: of the request, unique in the simulation; names the blocks that no id covers.
        """
        total = prompt_tokens // self._tokens
        names: list[BlockHash] = []
        if blocks:
            # If an engine's block spans several ids, only the id with its last token names it.
            keys = [*enumerate(blocks)] if self._tokens <= self._trace_tokens else self._naming(blocks, total)
            found = [*map(self._young.get, keys)]
            if not all(found):
                found = [self._find(key) if known is None else known for key, known in zip(keys, found, strict=True)]
            names += chain.from_iterable(found)  # type: ignore[arg-type] # all are found by now
            del names[total:]
        if len(names) < total:
            names += self._own_names(number, len(names), total)
        return tuple(names)

    def _naming(self, blocks: tuple[int, ...], total: int) -> list[tuple[int, int]]:
        places = (self._place_of_end(index) for index in range(total))
        return [(place, blocks[place]) for place in places if place < len(blocks)]

    def _place_of_end(self, index: int) -> int:
        return ((index + 1) * self._tokens - 1) // self._trace_tokens

    def _find(self, key: tuple[int, int]) -> tuple[BlockHash, ...]:
        """The names for an id at a position, which are then cached."""
        names = self._old.get(key)
        if names is None:
            place, block = key
            if self._trace_tokens == self._tokens:  # the usual case
                digest = self._shared.copy()
                digest.update(_KEY(block, place, place))
                names = (BlockHash(digest.digest()[:HASH_BYTES]),)
            else:
                first = place * self._trace_tokens // self._tokens
                last = (place + 1) * self._trace_tokens // self._tokens
                names = (*_digests(self._shared, block, place, first, last),)
        if len(self._young) >= self._remembered:
            self._old = dict(self._young)
            self._young.clear()
        self._young[key] = names
        return names

    def _own_names(self, number: int, first: int, last: int) -> list[BlockHash]:
        """Names of engine blocks [first, last) that only this request has."""
        return _digests(self._own, number, 0, first, last)


def _digests(keyed: blake2b, identity: int, place: int, first: int, last: int) -> list[BlockHash]:
    """Names of engine blocks [first, last), four to a digest."""
    names: list[BlockHash] = []
    for index in range(first, last, _NAMES_PER_DIGEST):
        digest = keyed.copy()
        digest.update(_KEY(identity, place, index))
        names += _FOUR_NAMES(digest.digest())
    del names[last - first :]
    return names
