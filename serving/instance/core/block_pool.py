"""Block pool: the references to each KV block of one instance, and the free blocks with reusable content.

Every block is in exactly one of three states:

    referenced   one or more sequences have it in their block table
    cold         no references, but its content is known by prefix hash: matchable until it is evicted
    blank        no references, and no valid content

Allocation takes blank blocks first, then evicts the cold block that was released longest ago. A prefix match takes
a cold block back at no cost. All operations are O(1) per block.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import cast

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.values.kv_changes import GPU, BlocksRemoved, KvChanges


@lru_cache(maxsize=16)
def _ids(count: int) -> tuple[BlockId, ...]:
    """`0 ... count - 1`: the same objects for all pools of one size, of which a process may have hundreds."""
    return cast("tuple[BlockId, ...]", tuple(range(count)))


class BlockPool:
    """Reference counts, free lists and the prefix-hash map of one KV arena."""

    __slots__ = ("_blank", "_block_of", "_cold", "_hash_of", "_refs", "changes", "evictions", "num_blocks", "num_free")

    def __init__(self, num_blocks: int) -> None:
        """
        Args:
            num_blocks: blocks of the arena; ids are `0 ... num_blocks - 1`.
        Raises: LedgerError if there is no block.
        """
        if num_blocks < 1:
            raise LedgerError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        """Blocks that `allocate` could return now: blank and cold ones. Read only."""
        self.evictions = 0
        self.changes: KvChanges | None = None
        """Gets every content that can no longer be matched; None = nobody is interested."""
        self._refs = [0] * num_blocks
        self._hash_of: list[BlockHash | None] = [None] * num_blocks
        self._block_of: dict[BlockHash, BlockId] = {}
        # Lowest ids on top: a lightly used arena touches few pages.
        self._blank = [*reversed(_ids(num_blocks))]
        self._cold = ColdBlocks()

    @property
    def num_used(self) -> int:
        """Blocks referenced by at least one sequence."""
        return self.num_blocks - self.num_free

    @property
    def num_cold(self) -> int:
        """Free blocks whose content can still be matched."""
        return len(self._cold)

    def allocate(self, count: int) -> list[BlockId]:
        """Take `count` blocks, each with one reference and no content.

        Raises: LedgerError if fewer are free; callers check `num_free` first.
        Effects: may evict cold blocks, oldest first.
        """
        if count > self.num_free:
            raise LedgerError(f"asked for {count} blocks with {self.num_free} free")
        blank = self._blank
        fresh = min(count, len(blank))
        taken = blank[len(blank) - fresh :]
        taken.reverse()
        del blank[len(blank) - fresh :]
        refs, hash_of, block_of = self._refs, self._hash_of, self._block_of
        if count > fresh:
            evicted = self._cold.take(count - fresh)
            if self.changes is not None:
                self._tell_gone([hash_of[block] for block in evicted])  # type: ignore[misc] # they have content
            for block in evicted:
                del block_of[hash_of[block]]  # type: ignore[arg-type] # a cold block has content
                hash_of[block] = None
            self.evictions += count - fresh
            taken += evicted
        for block in taken:
            refs[block] = 1
        self.num_free -= count
        return taken

    def retain(self, blocks: Iterable[BlockId]) -> None:
        """Add one reference to each block for a sequence that shares them.

        Raises: LedgerError for a blank block, which has no valid content.
        Effects: cold blocks become referenced.
        """
        refs = self._refs
        for block in blocks:
            if refs[block] == 0:
                if self._hash_of[block] is None:
                    raise LedgerError(f"block {block} is blank and cannot be shared")
                self._cold.remove(block)
                self.num_free -= 1
            refs[block] += 1

    def release(self, blocks: Sequence[BlockId]) -> None:
        """Drop one reference of each block in a block table without duplicates.

        Raises: LedgerError if a block is not referenced.
        Effects: blocks without references become cold or blank; the table's last block becomes the oldest cold one,
            because a chain without its head can never be matched.
        """
        refs, hash_of, blank = self._refs, self._hash_of, self._blank
        cold: list[BlockId] = []
        before = len(blank)
        for block in reversed(blocks):
            uses = refs[block] - 1
            if uses < 0:
                raise LedgerError(f"block {block} released more often than taken")
            refs[block] = uses
            if not uses:
                (blank if hash_of[block] is None else cold).append(block)
        self._cold.extend(cold)
        self.num_free += len(blank) - before + len(cold)

    def publish(self, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], start: int, stop: int) -> None:
        """Make full, computed blocks matchable. Of blocks with the same content the first stays matchable.

        Args:
            blocks: block table. hashes: of its leading blocks. start, stop: range of those that have become full.
        Raises: LedgerError if a block is not referenced or already carries another hash.
        """
        refs, hash_of, block_of = self._refs, self._hash_of, self._block_of
        for block, prefix_hash in zip(blocks[start:stop], hashes[start:stop], strict=True):
            if not refs[block]:
                raise LedgerError(f"block {block} published while free")
            known = hash_of[block]
            if known is None:
                if block_of.setdefault(prefix_hash, block) == block:
                    hash_of[block] = prefix_hash
            elif known != prefix_hash:
                raise LedgerError(f"block {block} published twice with different content")

    def distrust(self, blocks: Iterable[BlockId]) -> None:
        """Make blocks unmatchable permanently, because their bytes differ from the computed ones.

        Effects: cold ones become blank; referenced ones stay with their sequences.
        """
        for block in blocks:
            if self._hash_of[block] is not None:
                self._forget(block)
                if not self._refs[block]:
                    self._cold.remove(block)
                    self._blank.append(block)

    def match(self, hashes: Sequence[BlockHash], limit: int) -> list[BlockId]:
        """Blocks that hold the longest known prefix of a hash chain; nothing is referenced yet.

        Args:
            limit: at most this many blocks.
        """
        found: list[BlockId] = []
        block_of = self._block_of
        for prefix_hash in hashes[: max(0, limit)]:
            block = block_of.get(prefix_hash)
            if block is None:
                break
            found.append(block)
        return found

    def find(self, prefix_hash: BlockHash) -> BlockId | None:
        """The block with this content; None if it is not known."""
        return self._block_of.get(prefix_hash)

    def count_cold(self, blocks: Iterable[BlockId]) -> int:
        """How many of these blocks are free now, and would no longer be after `retain`."""
        refs = self._refs
        return len([block for block in blocks if not refs[block]])

    def check(self, tables: Iterable[Sequence[BlockId]] = ()) -> None:
        """Check that the ledger balances.

        Args:
            tables: block tables of all sequences; their use must equal the reference counts exactly.
        Raises: LedgerError if it does not.
        """
        uses = [0] * self.num_blocks
        for table in tables:
            for block in table:
                uses[block] += 1
        if uses != self._refs:
            wrong = [b for b in range(self.num_blocks) if uses[b] != self._refs[b]]
            raise LedgerError(f"blocks {wrong[:8]}: reference counts differ from the block tables")
        blank, cold = set(self._blank), set(self._cold)
        for index, refs in enumerate(self._refs):
            places = (refs > 0) + (index in cold) + (index in blank)
            if places != 1:
                raise LedgerError(f"block {index} is in {places} places")
        if len(blank) != len(self._blank):
            raise LedgerError("a block is twice in the blank list")
        if self.num_free != len(blank) + len(cold) or len(cold) != len(self._cold):
            raise LedgerError(f"{self.num_free} blocks count as free, {len(blank)} are blank and {len(cold)} cold")
        known = {h: b for b, h in enumerate(self._hash_of) if h is not None}
        if known != self._block_of:
            raise LedgerError("prefix hashes and their map disagree")
        if any(self._hash_of[b] is None for b in cold) or any(self._hash_of[b] is not None for b in blank):
            raise LedgerError("a cold block without content, or a blank one with it")

    def _forget(self, block: BlockId) -> None:
        prefix_hash = self._hash_of[block]
        assert prefix_hash is not None, "a cold block has content"
        del self._block_of[prefix_hash]
        self._hash_of[block] = None
        if self.changes is not None:
            self._tell_gone([prefix_hash])

    def _tell_gone(self, hashes: list[BlockHash]) -> None:
        assert self.changes is not None
        self.changes.note(BlocksRemoved(GPU, hashes))


# Free KV blocks whose content is still known, in the order in which they were released.
#
# A list is read from its front and grows at its end. A block taken out of the middle, because a prefix matched it,
# leaves a mark in the list that is skipped at the front:
#
#     [ taken | taken | 7 | 3 | (5) | 9 | 5 ]        5 was taken back by a match and released again: its first place is
#                       ▲ front                      void, its last one counts

_SWEEP_AT = 1024
"""Minimum number of taken or void places before they are swept."""


class ColdBlocks:
    """A queue of blocks with cheap removal from its middle. A block is in it at most once."""

    __slots__ = ("_front", "_places", "_size", "_void")

    def __init__(self) -> None:
        self._places: list[BlockId] = []
        self._front = 0
        self._size = 0
        self._void: dict[BlockId, int] = {}
        """Number of a block's void places; they precede the valid one."""

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[BlockId]:
        """Oldest first."""
        void = dict(self._void)
        for block in self._places[self._front :]:
            if void.get(block):
                void[block] -= 1
            else:
                yield block

    def extend(self, blocks: Sequence[BlockId]) -> None:
        """Append released blocks in this order; none of them may be in the queue.

        Effects: they become the youngest.
        """
        self._places += blocks
        self._size += len(blocks)

    def remove(self, block: BlockId) -> None:
        """Remove a block from anywhere in the queue."""
        self._void[block] = self._void.get(block, 0) + 1
        self._size -= 1
        if len(self._places) - self._front > 2 * self._size + _SWEEP_AT:  # matched again and again, but never evicted
            self._places, self._front = list(self), 0
            self._void.clear()

    def take(self, count: int) -> list[BlockId]:
        """Take out the oldest blocks; there must be at least `count`."""
        assert count <= self._size, "more blocks are taken than are cold"
        front = self._front
        taken = self._places[front : front + count]
        front += count
        if self._void and not self._void.keys().isdisjoint(taken):
            taken, front = self._valid(count)
        self._front = front
        self._size -= count
        if front > _SWEEP_AT and 2 * front > len(self._places):
            del self._places[:front]
            self._front = 0
        return taken

    def _valid(self, count: int) -> tuple[list[BlockId], int]:
        """The oldest blocks, skipping void places. Returns: the blocks, and the new front."""
        places, void, front = self._places, self._void, self._front
        taken: list[BlockId] = []
        while lacking := count - len(taken):
            part = places[front : front + lacking]
            front += lacking
            for block in part:
                if block not in void:
                    taken.append(block)
                elif void[block] == 1:
                    del void[block]
                else:
                    void[block] -= 1
        return taken, front
