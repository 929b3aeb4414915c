"""The blocks of each sequence: reserve, grow, publish, free.

    position   0 .. bt-1   bt .. 2bt-1   ...                        (bt = block_tokens)
    block      [ matched ][ matched ][ own, full ][ own, partly filled ]
                shared, read only      ^ published when full: others may match it from then on

Only blocks after the matched ones are ever written, so sharing needs no copy.
"""

from collections.abc import Sequence

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.sequence import LiveSequence, SequencePhase
from serving.values.kv_changes import GPU, BlocksStored, KvChanges
from serving.values.layer_split import FetchedRows
from serving.values.prefix_hash import extend_hashes


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Number of blocks for `tokens` tokens."""
    return -(-tokens // block_tokens)


class SequenceBlocks:
    """Block tables over one pool. See `WindowedBlocks` for models with a sliding window."""

    def __init__(self, pool: BlockPool, block_tokens: int, *, prefix_reuse: bool, cache_decoded: bool) -> None:
        """
        Args:
            prefix_reuse: publish full blocks and match them.
            cache_decoded: also publish blocks that contain generated tokens.
        """
        self.pool = pool
        self.block_tokens = block_tokens
        self.prefix_reuse = prefix_reuse
        self.cache_decoded = cache_decoded
        self.width = 1
        """Blocks of a table for each `block_tokens` positions."""
        self.slides = False
        """Whether blocks are freed while a sequence runs; if so, prompts get theirs chunk by chunk."""
        self.max_tokens = pool.num_blocks * block_tokens
        """Longest sequence that fits the whole arena."""

    def reserve(self, sequence: LiveSequence, keep_free: int) -> bool:
        """Reserve blocks for all known tokens of a sequence without blocks, including cached ones.

        At least the last token stays uncomputed, because the next one is sampled from its logits. Log-probabilities
        of the prompt need every prompt position computed, so they disable matching.

        Args:
            keep_free: blocks that must stay free afterwards.
        Returns: False, without changes, if there are too few free blocks.
        Effects: sets `blocks`, `num_computed` (the matched tokens) and `num_published`.
        """
        pool = self.pool
        if pool.num_free < keep_free + 1:
            return False
        matched, block_tokens = self._match(sequence), self.block_tokens
        fresh = blocks_for(sequence.num_known, block_tokens) - len(matched)
        if pool.num_free - pool.count_cold(matched) - fresh < keep_free:
            return False
        pool.retain(matched)
        sequence.blocks.extend(matched)
        sequence.blocks.extend(pool.allocate(fresh))
        sequence.num_computed = len(matched) * block_tokens
        sequence.num_published = len(matched)
        sequence.num_stored = max(sequence.num_stored, len(matched))
        return True

    def take_over(self, sequence: LiveSequence, holder: LiveSequence) -> bool:
        """Transfer the blocks of another sequence, which has ended, and their metadata to a sequence that continues it.

        Without missing tokens it grows like any stream; otherwise blocks for all missing tokens are reserved
        immediately.

        Returns: False, without changes, if there are too few free blocks.
        Effects: empties the holder's block table.
        """
        known = self._reach(holder.num_computed, sequence.num_known)
        if known > holder.num_computed + 1 and not self.grow(holder, known):
            return False
        sequence.blocks, holder.blocks = holder.blocks, sequence.blocks
        sequence.hashes = holder.hashes
        sequence.num_computed = holder.num_computed
        sequence.masked_from = holder.masked_from
        sequence.num_published = holder.num_published
        sequence.num_stored = holder.num_stored
        sequence.num_slid = holder.num_slid
        return True

    def fetchable(self, sequence: LiveSequence) -> int:
        """Number of full blocks of a just admitted sequence that another instance may have computed.

        As in `reserve`, the last token stays uncomputed, and log-probabilities of the prompt disable reuse.
        """
        return self._reusable(sequence) - sequence.num_published

    def would_fetch(self, sequence: LiveSequence) -> bool:
        """Whether a sequence without blocks, admitted now, would have `fetchable` blocks."""
        return self._reusable(sequence) > len(self._match(sequence)) // self.width

    def fetched(self, sequence: LiveSequence, blocks: int) -> None:
        """Record the number of leading blocks that a fetch has filled. Effects: sets `num_computed`."""
        sequence.num_computed += blocks * self.block_tokens

    def lacks(self, sequence: LiveSequence, tokens: int) -> int:
        """Number of blocks missing in the block table for `tokens` positions."""
        return max(0, blocks_for(tokens, self.block_tokens) * self.width - len(sequence.blocks))

    def grow(self, sequence: LiveSequence, tokens: int) -> bool:
        """Extend the block table to cover `tokens` positions.

        Returns: False, without changes, if the pool has too few free blocks.
        """
        missing = blocks_for(tokens, self.block_tokens) * self.width - len(sequence.blocks)
        if missing <= 0:
            return True
        if self.pool.num_free < missing:
            return False
        sequence.blocks.extend(self.pool.allocate(missing))
        return True

    def until_full(self, sequence: LiveSequence) -> int:
        """Number of tokens to compute until the next block is full."""
        return self.block_tokens - sequence.num_computed % self.block_tokens

    def publish(self, sequence: LiveSequence) -> None:
        """Make the blocks that became full matchable. Call after their KV has been written.

        Effects: extends `hashes` and `num_published`.
        """
        full = self._matchable(sequence)
        if full <= sequence.num_published:
            return
        self._hash(sequence, full)
        self.pool.publish(sequence.blocks, sequence.hashes, sequence.num_published, full)
        if self.pool.changes is not None:
            self._tell_stored(sequence, sequence.num_published, full)
        sequence.num_published = full

    def _tell_stored(self, sequence: LiveSequence, first: int, end: int) -> None:
        """Note rows that can be matched from now on, unless their tokens must not leave the system."""
        changes, spec = self.pool.changes, sequence.spec
        if changes is not None and spec.namespace in changes.namespaces and not spec.salted:
            self._note_stored(changes, sequence, first, end)

    def _note_stored(self, changes: KvChanges, sequence: LiveSequence, first: int, end: int) -> None:
        hashes, parent = sequence.hashes[first:end], sequence.hashes[first - 1] if first else None
        tokens = sequence.tokens[first * self.block_tokens : end * self.block_tokens]
        changes.note(BlocksStored(GPU, hashes, parent, tokens))

    def _matchable(self, sequence: LiveSequence) -> int:
        """Number of leading rows that other sequences may match once published."""
        if not self.prefix_reuse:
            return 0
        full = sequence.reusable(sequence.num_computed) // self.block_tokens
        if full > sequence.num_published and not self.cache_decoded:
            full = min(full, sequence.prompt_tokens // self.block_tokens)
        return full

    def slide(self, sequence: LiveSequence) -> None:
        """Free blocks that no later token attends to; none without a window. Call after `publish`."""

    def run(self, sequence: LiveSequence, first: int, end: int) -> tuple[Sequence[BlockHash], Sequence[BlockId]]:
        """The existing blocks of full rows `first ... end - 1` of the table, and the hash of each."""
        return sequence.hashes[first:end], sequence.blocks[first:end]

    def known_rows(self, hashes: Sequence[BlockHash]) -> int:
        """Leading rows of a chain whose blocks are here, for information. Any thread may call it."""
        return len(self.pool.match(hashes, len(hashes)))

    def to_fetch(self, sequence: LiveSequence) -> tuple[Sequence[BlockHash], Sequence[BlockId], FetchedRows | None]:
        """Hashes to fetch from the KV-cache pool, and blocks to fill; see `FetchOrder`."""
        first = sequence.num_published
        hashes, blocks = self.run(sequence, first, first + self.fetchable(sequence))
        return hashes, blocks, None

    def to_hand_over(self, sequence: LiveSequence) -> tuple[BlockId, ...]:
        """Blocks that another instance needs to continue from the computed tokens, in the order of the table."""
        return tuple(sequence.blocks[: blocks_for(sequence.num_computed, self.block_tokens)])

    def to_pull(self, sequence: LiveSequence, computed: int) -> tuple[int, tuple[BlockId, ...]]:
        """Blocks to fill by a handoff of this many computed tokens, and the index of the first in its list."""
        first = sequence.num_computed // self.block_tokens
        return first, tuple(sequence.blocks[first : blocks_for(computed, self.block_tokens)])

    def held(self, sequence: LiveSequence) -> Sequence[BlockId]:
        """All blocks of the sequence, each once."""
        return sequence.blocks

    def check(self, sequence: LiveSequence) -> None:
        """Check that the table covers the computed tokens, and that only sequences without blocks wait.

        Raises: LedgerError if not.
        """
        if not sequence.blocks and sequence.phase not in (SequencePhase.WAITING, SequencePhase.ADOPTING):
            raise LedgerError(f"a {sequence.phase.value} sequence has 0 blocks")
        if sequence.num_computed > len(sequence.blocks) * self.block_tokens:
            raise LedgerError(f"{sequence.sequence_id}: {sequence.num_computed} computed tokens do not fit its blocks")

    def full_hashes(self, sequence: LiveSequence) -> tuple[BlockHash, ...]:
        """Hashes of all full computed blocks that may be reused, for a handoff; empty if prefix reuse is off."""
        if not self.prefix_reuse:
            return ()
        full = sequence.reusable(sequence.num_computed) // self.block_tokens
        self._hash(sequence, full)
        return tuple(sequence.hashes[:full])

    def distrust(self, sequence: LiveSequence) -> None:
        """Make this sequence's blocks unmatchable for other sequences."""
        self.pool.distrust(sequence.blocks)

    def free(self, sequence: LiveSequence) -> None:
        """Free all blocks. Published ones stay matchable until they are evicted.

        Effects: empties the block table.
        """
        self.pool.release(sequence.blocks)
        sequence.blocks.clear()

    def _reach(self, computed: int, known: int) -> int:
        """Positions that the table of a sequence with these numbers of computed and known tokens covers at once."""
        return known

    def _reusable(self, sequence: LiveSequence) -> int:
        if not self.prefix_reuse or sequence.prompt_logprobs_wanted is not None:
            return 0
        return (sequence.num_known - 1) // self.block_tokens

    def _match(self, sequence: LiveSequence) -> list[BlockId]:
        """The reusable blocks in the pool. Effects: may extend `hashes`."""
        reusable = self._reusable(sequence)
        if not reusable:
            return []
        self._hash(sequence, sequence.num_known // self.block_tokens)
        return self.pool.match(sequence.hashes, reusable)

    def _hash(self, sequence: LiveSequence, full: int) -> None:
        """Ensure that the hashes of this many leading blocks are known. Effects: may extend `hashes`."""
        if len(sequence.hashes) < full:
            extend_hashes(sequence.hashes, sequence.tokens, self.block_tokens, sequence.spec.salt)
