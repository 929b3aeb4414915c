"""Conversion of a trace's prefix ids to the names of an engine's KV blocks.

A trace cuts prompts into blocks of T tokens, an engine into blocks of E. Engine block j is equal in two prompts if the
trace block with its last token is, because an id identifies the whole prefix up to its block:

    trace, T = 6    |     a     |     b     |     c     |
    engine, E = 4   |   0   |   1   |   2   |   3   |      named by  a0  b1  b2  c3

so a name is a digest of that id, its position and j. If E divides T, an id gives T / E names and no information is
lost; if T divides E, every E / T-th id gives one; otherwise a block that spans two ids depends on the second one.
Blocks after the last id, and prompts without ids, get unique names.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import cast

from serving.errors import ConfigError
from serving.ids import BlockHash
from serving.values.prefix_hash import HASH_BYTES

_NAMES_PER_DIGEST = 4
_FOUR_NAMES = Struct(f"{HASH_BYTES}s" * _NAMES_PER_DIGEST).unpack
_KEY = Struct("<QQQ").pack

REMEMBERED_IDS = 1 << 17
"""Ids of cached runs. Naming an id again takes 1 µs, so this only bounds memory: 50 MB."""

_Run = tuple[tuple[int, ...], tuple[BlockHash, ...]]
"""The leading ids of a prompt and the names that they give."""


class BlockNames:
    """Names the full KV blocks of a trace's prompts.

    Prompts that share a prefix share the names of it: each id leads to the run of ids and names of the prompt that had
    it first. Two generations bound the cache without tracking uses: a used run moves to the young generation, and when
    that is full, the old one is dropped.
    """

    def __init__(self, trace_block_tokens: int, block_tokens: int, *, remembered: int = REMEMBERED_IDS) -> None:
        """
        Args:
            trace_block_tokens: tokens per id. block_tokens: tokens per block of the engine.
            remembered: ids in the runs of each of the two generations.
        Raises: ConfigError if a size is below 1.
        """
        if trace_block_tokens < 1 or block_tokens < 1 or remembered < 1:
            raise ConfigError(f"blocks of {trace_block_tokens} and {block_tokens} tokens: both must be above 0")
        self._trace_tokens = trace_block_tokens
        self._tokens = block_tokens
        self._remembered = remembered
        self._young: dict[int, _Run] = {}
        self._young_ids = 0
        self._old: dict[int, _Run] = {}
        self._shared = blake2b(digest_size=64, person=b"trace prefix id")
        self._own = blake2b(digest_size=64, person=b"trace request")

    def names(self, prompt_tokens: int, blocks: tuple[int, ...], number: int) -> tuple[BlockHash, ...]:
        """Names of the prompt's full engine blocks, in order.

        Args:
            blocks: prefix ids of the prompt's leading blocks, as `TraceRequest.blocks`.
            number: of the request, unique in the simulation; names the blocks that no id covers.
        """
        total = prompt_tokens // self._tokens
        names: tuple[BlockHash, ...] = ()
        if blocks:
            # If an engine's block spans several ids, only the id with its last token names it.
            names = self._shared_names(blocks if self._tokens <= self._trace_tokens else self._naming(blocks, total))
        if len(names) < total:
            return (*names, *_digests(self._own, number, 0, len(names), total))
        return names[:total]

    def _naming(self, blocks: tuple[int, ...], total: int) -> tuple[int, ...]:
        places = map(self._place, range(total))
        return tuple([blocks[place] for place in places if place < len(blocks)])

    def _place(self, index: int) -> int:
        """Place in the trace's prompt of the id with this index among those that name engine blocks."""
        return index if self._tokens <= self._trace_tokens else ((index + 1) * self._tokens - 1) // self._trace_tokens

    def _shared_names(self, ids: tuple[int, ...]) -> tuple[BlockHash, ...]:
        """Names of the engine blocks that these ids cover. The new ones are then cached."""
        known, run = self._find(ids)
        if run is not None:
            cached = run[1][: (self._place(known - 1) + 1) * self._trace_tokens // self._tokens]
            if self._young.get(ids[known - 1]) is not run:
                self._remember(ids[:known], cached, 0)
            if known == len(ids):
                return cached
            names = (*cached, *self._new_names(ids, known))
        else:
            names = tuple(self._new_names(ids, 0))
        self._remember(ids, names, known)
        return names

    def _find(self, ids: tuple[int, ...]) -> tuple[int, _Run | None]:
        """A cached run that begins with as many of the ids as possible, and their number."""
        known, end, best = 0, len(ids), None
        while known < end:
            middle = (known + end) // 2
            identity = ids[middle]
            run = self._young.get(identity) or self._old.get(identity)
            if run is not None and len(run[0]) > middle and run[0][middle] == identity:
                known, best = middle + 1, run
            else:
                end = middle
        if best is not None and best[0][:known] != ids[:known]:  # an id that does not identify its whole prefix
            known = next(place for place in range(known) if best[0][place] != ids[place])
        return known, best if known else None

    def _remember(self, ids: tuple[int, ...], names: tuple[BlockHash, ...], first: int) -> None:
        """Cache a run for its ids from index `first` on."""
        if self._young_ids >= self._remembered:
            self._old, self._young, self._young_ids = self._young, {}, 0
        self._young_ids += len(ids)
        self._young.update(dict.fromkeys(ids[first:], (ids, names)))

    def _new_names(self, ids: tuple[int, ...], first: int) -> Sequence[BlockHash]:
        """Names that the ids from index `first` on give."""
        names: list[bytes] = []
        for index in range(first, len(ids)):
            if self._trace_tokens == self._tokens:  # the usual case
                digest = self._shared.copy()
                digest.update(_KEY(ids[index], index, index))
                names.append(digest.digest()[:HASH_BYTES])
            else:
                place = self._place(index)
                begin, end = (at * self._trace_tokens // self._tokens for at in (place, place + 1))
                names += _digests(self._shared, ids[index], place, begin, end)
        return cast("list[BlockHash]", names)


def _digests(keyed: blake2b, identity: int, place: int, first: int, last: int) -> list[BlockHash]:
    """Names of engine blocks [first, last), four to a digest."""
    names: list[BlockHash] = []
    for index in range(first, last, _NAMES_PER_DIGEST):
        digest = keyed.copy()
        digest.update(_KEY(identity, place, index))
        names += _FOUR_NAMES(digest.digest())
    del names[last - first :]
    return names
