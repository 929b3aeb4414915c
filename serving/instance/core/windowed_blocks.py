"""Block tables of models with a sliding window: blocks outside the window are freed while a sequence runs.

    row         0        1        2        3        4               position num_computed
    full      [here]   [here]   [here]   [here]   [here]                      |
    sliding   [GONE]   [GONE]   [here]   [here]   [here]                      v
                                ^ num_slid = 2     ^ the window begins in row 2

A prompt's table grows chunk by chunk, since its sliding blocks are never needed all at once; admission only checks that
all blocks would be available. Freed blocks stay matchable until evicted, as at a sequence's end.
"""

from collections.abc import Sequence

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.sequence import LiveSequence, SequencePhase
from serving.instance.core.sequence_blocks import SequenceBlocks, blocks_for
from serving.instance.core.settings import EngineSettings
from serving.values.kv_changes import GPU, BlocksStored, KvChanges
from serving.values.layer_split import GONE, FetchedRows, LayerSplit

_UNBOUNDED = 1 << 60
_COMPUTING = (SequencePhase.PREFILLING, SequencePhase.DECODING, SequencePhase.HELD)


class WindowedBlocks(SequenceBlocks):
    """Block tables over one pool, with rows described by a `LayerSplit`."""

    def __init__(
        self,
        pool: BlockPool,
        block_tokens: int,
        split: LayerSplit,
        *,
        prefix_reuse: bool,
        cache_decoded: bool,
        step_tokens: int,
        fetches: bool,
    ) -> None:
        """
        Args:
            step_tokens: maximum number of tokens of one sequence in a step.
            fetches: whether there is a KV-cache pool; if so, an admitted prompt has blocks for all tokens it may fetch.
        """
        super().__init__(pool, block_tokens, prefix_reuse=prefix_reuse, cache_decoded=cache_decoded)
        self.width = split.width
        self.slides = True
        self._split = split
        self._step_tokens = step_tokens
        self._fetches = fetches
        self._most_rows = blocks_for(split.window - 1 + step_tokens, block_tokens) + 1
        """Maximum number of rows with sliding blocks in one sequence."""
        self.max_tokens = self._longest()

    def reserve(self, sequence: LiveSequence, keep_free: int) -> bool:
        """Give a sequence its matched blocks, and those of its first chunk, its fetch or its pull.

        Args:
            keep_free: blocks that must stay free if it had all blocks that it may need for its known tokens at one
                time.
        Returns, effects: as for `SequenceBlocks.reserve`; also sets `num_slid`.
        """
        pool, size = self.pool, self.block_tokens
        if pool.num_free < keep_free + 1:
            return False
        matched, known = self._match(sequence), len(sequence.tokens)
        here = _present(matched)
        if pool.num_free - pool.count_cold(here) - max(0, self._most_blocks(known) - len(here)) < keep_free:
            return False
        pool.retain(here)
        sequence.blocks.extend(matched)
        rows = len(matched) // self.width
        sequence.num_computed = rows * size
        sequence.num_published = rows
        sequence.num_stored = max(sequence.num_stored, rows)
        seen_from = self._seen_from(sequence, rows)
        sequence.num_slid = seen_from
        if sequence.phase is SequencePhase.ADOPTING:
            end, slides_from = blocks_for(self._reach(self._brought(sequence), known), size), seen_from
        elif self._fetches and (end := self._reusable(sequence)) > rows:
            slides_from = max(rows, end - self._split.tail_rows(size))
        else:
            end, slides_from = blocks_for(self._reach(rows * size, known), size), rows
        self._extend(sequence, end, slides_from)
        return True

    def fetched(self, sequence: LiveSequence, blocks: int) -> None:
        """Record a fetch. Effects: sets `num_computed`; the table ends with the filled rows."""
        size, width, full = self.block_tokens, self.width, self._split.full
        first = sequence.num_computed // size
        end = first + blocks // width
        seen_from = self._split.first_row(end * size, size)
        before = sequence.blocks[first * width :]
        after: list[BlockId] = []
        for row in range(first, end):
            own = self._target_row(sequence, row)
            after += own if row >= seen_from else own[:full] + [GONE] * (width - full)
        sequence.blocks[first * width :] = after
        kept = set(after)
        self.pool.release([block for block in _present(before) if block not in kept])
        sequence.num_computed = end * size
        self.slide(sequence)

    def publish(self, sequence: LiveSequence) -> None:
        """Make the rows that became full matchable, block by block; see `SequenceBlocks.publish`."""
        full = self._matchable(sequence)
        if full <= sequence.num_published:
            return
        self._hash(sequence, full)
        hashes, blocks = self.run(sequence, sequence.num_published, full)
        self.pool.publish(blocks, hashes, 0, len(blocks))
        if self.pool.changes is not None:
            self._tell_stored(sequence, sequence.num_published, full)
        sequence.num_published = full

    def _note_stored(self, changes: KvChanges, sequence: LiveSequence, first: int, end: int) -> None:
        """One chain for each block of a row, which is a group of layers; without sliding blocks that are gone."""
        size = self.block_tokens
        for place in range(self.width):
            rows = [row for row in range(first, end) if self._row(sequence, row)[place] != GONE]
            if rows:
                before = [sequence.hashes[rows[0] - 1]] if rows[0] else []
                keys = [self._split.keys(one)[place] for one in (*before, *(sequence.hashes[row] for row in rows))]
                parent, hashes = (keys[0], keys[1:]) if before else (None, keys)
                tokens = sequence.tokens[rows[0] * size : (rows[-1] + 1) * size]
                changes.note(BlocksStored(GPU, hashes, parent, tokens, group=place))

    def slide(self, sequence: LiveSequence) -> None:
        """Free the blocks that neither a later token nor a running step attends to. Call after `publish`.

        Effects: replaces them with `GONE` in the table; updates `num_slid`.
        """
        begin, end = sequence.num_slid, self._split.first_row(sequence.num_computed, self.block_tokens)
        if end <= begin:
            return
        table, width, full = sequence.blocks, self.width, self._split.full
        freed: list[BlockId] = []
        for row in range(begin, end):
            for place in range(row * width + full, (row + 1) * width):
                if table[place] != GONE:
                    freed.append(table[place])
                    table[place] = GONE
        self.pool.release(freed)
        sequence.num_slid = end

    def run(self, sequence: LiveSequence, first: int, end: int) -> tuple[Sequence[BlockHash], Sequence[BlockId]]:
        """The existing blocks of full rows, and the hash of each."""
        hashes: list[BlockHash] = []
        blocks: list[BlockId] = []
        for row in range(first, end):
            for key, block in zip(self._split.keys(sequence.hashes[row]), self._row(sequence, row), strict=True):
                if block != GONE:
                    hashes.append(key)
                    blocks.append(block)
        return hashes, blocks

    def known_rows(self, hashes: Sequence[BlockHash]) -> int:
        """Leading rows here, as in `SequenceBlocks`, without their sliding blocks: only the last rows need those."""
        return len(self.pool.match([self._split.keys(one)[0] for one in hashes], len(hashes)))

    def to_fetch(self, sequence: LiveSequence) -> tuple[Sequence[BlockHash], Sequence[BlockId], FetchedRows | None]:
        """Hashes and blocks for the KV-cache pool. Rows that are never needed together share their sliding blocks."""
        first = sequence.num_published
        hashes: list[BlockHash] = []
        blocks: list[BlockId] = []
        for row in range(first, first + self.fetchable(sequence)):
            hashes += self._split.keys(sequence.hashes[row])
            blocks += self._target_row(sequence, row)
        return hashes, blocks, FetchedRows(self._split, self.block_tokens, first)

    def to_hand_over(self, sequence: LiveSequence) -> tuple[BlockId, ...]:
        """Blocks that another instance needs to continue, without freed ones."""
        end = blocks_for(sequence.num_computed, self.block_tokens) * self.width
        return tuple(_present(sequence.blocks[:end]))

    def to_pull(self, sequence: LiveSequence, computed: int) -> tuple[int, tuple[BlockId, ...]]:
        """Blocks to fill by a handoff, and the index of the first in its list; see `SequenceBlocks.to_pull`."""
        size, width = self.block_tokens, self.width
        row, end = sequence.num_computed // size, blocks_for(computed, size)
        return self._split.present(row, computed, size), tuple(_present(sequence.blocks[row * width : end * width]))

    def held(self, sequence: LiveSequence) -> Sequence[BlockId]:
        """All blocks of the sequence, each once."""
        return _present(sequence.blocks)

    def check(self, sequence: LiveSequence) -> None:
        """Check that the table covers the computed tokens and holds exactly the blocks that the next token attends to.

        Raises: LedgerError if not.
        """
        name, size, width, full = sequence.sequence_id, self.block_tokens, self.width, self._split.full
        table = sequence.blocks
        if len(table) % width or sequence.num_computed * width > len(table) * size:
            raise LedgerError(f"{name}: {sequence.num_computed} computed tokens do not fit {len(table)} entries")
        if sequence.phase not in _COMPUTING:
            return
        if sequence.num_slid != self._split.first_row(sequence.num_computed, size):
            raise LedgerError(f"{name}: {sequence.num_slid} rows have slid at {sequence.num_computed} tokens")
        for row in range(len(table) // width):
            own = table[row * width : (row + 1) * width]
            if GONE in own[:full] or {block == GONE for block in own[full:]} != {row < sequence.num_slid}:
                raise LedgerError(f"{name}: row {row} is {own}, and those before {sequence.num_slid} have slid")

    def full_hashes(self, sequence: LiveSequence) -> tuple[BlockHash, ...]:
        """Empty: a handoff does not have all blocks, and its gateway knows the hashes of the prompt."""
        return ()

    def distrust(self, sequence: LiveSequence) -> None:
        """Make this sequence's blocks unmatchable for other sequences."""
        self.pool.distrust(_present(sequence.blocks))

    def free(self, sequence: LiveSequence) -> None:
        """Free all blocks. Effects: empties the block table."""
        self.pool.release(_present(sequence.blocks))
        sequence.blocks.clear()
        sequence.num_slid = 0

    def _most_blocks(self, known: int) -> int:
        """Maximum number of blocks at one time of a sequence with this many known tokens."""
        rows = blocks_for(known, self.block_tokens)
        return self._split.full * rows + self._split.sliding * min(rows, self._most_rows)

    def _longest(self) -> int:
        split, blocks, most_rows = self._split, self.pool.num_blocks, self._most_rows
        rows = blocks // split.width
        if rows >= most_rows:
            if not split.full:
                return _UNBOUNDED
            rows = (blocks - split.sliding * most_rows) // split.full
        return rows * self.block_tokens

    def _reach(self, computed: int, known: int) -> int:
        return min(known, computed + self._step_tokens)

    def _brought(self, sequence: LiveSequence) -> int:
        """Tokens that a handoff will bring; 0 = no handoff."""
        if sequence.ticket is None or sequence.phase is not SequencePhase.ADOPTING:
            return 0
        return sequence.ticket.computed_tokens

    def _seen_from(self, sequence: LiveSequence, rows: int) -> int:
        """First row whose sliding blocks are needed after this many rows are matched and any handoff has arrived."""
        size = self.block_tokens
        return self._split.first_row(max(rows * size, self._brought(sequence)), size)

    def _extend(self, sequence: LiveSequence, end: int, slides_from: int) -> None:
        """Append rows up to `end`, with sliding blocks from `slides_from` on."""
        width, full = self.width, self._split.full
        begin = len(sequence.blocks) // width
        bare = max(0, min(end, slides_from) - begin)
        fresh = self.pool.allocate(max(0, (end - begin) * width - bare * (width - full)))
        for row in range(bare):
            sequence.blocks += fresh[row * full : (row + 1) * full] + [GONE] * (width - full)
        sequence.blocks += fresh[bare * full :]

    def _row(self, sequence: LiveSequence, row: int) -> list[BlockId]:
        return sequence.blocks[row * self.width : (row + 1) * self.width]

    def _target_row(self, sequence: LiveSequence, row: int) -> list[BlockId]:
        """Blocks that a fetch fills for a row: its full ones, and the sliding ones of the last rows, in turn."""
        own = self._row(sequence, row)
        tail, rows = self._split.tail_rows(self.block_tokens), len(sequence.blocks) // self.width
        if not tail:
            return own
        stands_in = row + (rows - 1 - row) // tail * tail
        return own[: self._split.full] + self._row(sequence, stands_in)[self._split.full :]

    def _match(self, sequence: LiveSequence) -> list[BlockId]:
        """Cached rows as a block table: all their blocks that a later token attends to, or that a handoff needs.

        Effects: may extend `hashes`.
        """
        reusable, size, split = self._reusable(sequence), self.block_tokens, self._split
        if not reusable:
            return []
        self._hash(sequence, len(sequence.tokens) // size)
        brought = self._brought(sequence)
        needed_from, tail = split.first_row(brought, size), split.tail_rows(size)
        table: list[BlockId] = []
        rows = run = 0
        for row in range(reusable):
            known = [self.pool.find(key) for key in split.keys(sequence.hashes[row])]
            if None in known[: split.full]:
                break
            run = 0 if None in known[split.full :] else run + 1
            table += [GONE if block is None else block for block in known]
            if brought:
                if run == 0 and row >= needed_from:
                    break
                rows = row + 1
            elif run >= min(row + 1, tail):
                rows = row + 1
        seen_from = min(rows, self._seen_from(sequence, rows))
        del table[rows * self.width :]
        for row in range(seen_from):
            for place in range(row * self.width + split.full, (row + 1) * self.width):
                table[place] = GONE
        return table


def make_blocks(settings: EngineSettings, pool: BlockPool) -> SequenceBlocks:
    """Block tables for an engine's settings."""
    size, reuse, decoded = settings.block_tokens, settings.prefix_reuse, settings.cache_decoded
    if settings.split is None:
        return SequenceBlocks(pool, size, prefix_reuse=reuse, cache_decoded=decoded)
    return WindowedBlocks(
        pool,
        size,
        settings.split,
        prefix_reuse=reuse,
        cache_decoded=decoded,
        step_tokens=settings.max_step_tokens,
        fetches=settings.pool,
    )


def _present(table: Sequence[BlockId]) -> list[BlockId]:
    return [block for block in table if block != GONE]
