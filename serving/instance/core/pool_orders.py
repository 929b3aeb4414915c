"""Commands of one engine to the KV-cache pool: blocks to fetch and to store, and the blocks pinned for them.

Storing must never delay a token. A full block stays pinned until its bytes are copied; the number of such blocks is
bounded, and further ones are not stored, at the cost of a later recomputation. A leaving instance stores the skipped
blocks at the end.
"""

from collections.abc import Collection, Sequence

from serving.errors import LedgerError
from serving.ids import BlockHash, BlockId
from serving.instance.core.events import FetchOrder, StoreOrder
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.settings import EngineSettings
from serving.values.kv_hints import BlockClaim, ClaimedBlocks
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import PoolUse

_ORDER_BLOCKS = 32
"""Blocks per command while a leaving instance stores; each command completes as a whole."""


class PoolOrders:
    """Pool commands of one engine to its driver. Without a pool, every method is a no-op."""

    def __init__(self, settings: EngineSettings, blocks: SequenceBlocks) -> None:
        self._settings = settings
        self._blocks = blocks
        self._orders = 0
        self._new: list[StoreOrder] = []
        self._pinned: dict[int, tuple[BlockId, ...]] = {}
        self.pinned_blocks = 0
        """Blocks that wait to be copied into the pool."""
        self.pulled_tokens = 0
        self.lost_tokens = 0
        self.skipped_blocks = 0
        """Blocks that were not stored because too many were waiting."""
        self._skipped: dict[BlockHash, str] = {}
        """The latest skipped blocks, with their namespaces; some may since have been overwritten or stored by other
        instances.
        """
        self._leaving = False

    @property
    def tables(self) -> Collection[Sequence[BlockId]]:
        """The pinned blocks, as block tables, for the audit."""
        return self._pinned.values()

    def fetch_order(self, sequence: LiveSequence) -> FetchOrder:
        """The command for a sequence that was just admitted to FETCHING."""
        hashes, blocks, rows = self._blocks.to_fetch(sequence)
        return FetchOrder(sequence.sequence_id, sequence.spec.namespace, tuple(hashes), tuple(blocks), rows)

    def fetched(self, sequence: LiveSequence, report: FetchReport) -> None:
        """Book a fetch; `num_computed` already includes its blocks.

        Effects: fetched blocks are not stored again; at the first admission, sets the `pool_use` reported to the
        request.
        """
        block_tokens, width = self._blocks.block_tokens, self._blocks.width
        pulled, lost = report.blocks // width * block_tokens, report.lost_blocks // width * block_tokens
        sequence.num_stored = max(sequence.num_stored, sequence.num_computed // block_tokens)
        self.pulled_tokens += pulled
        self.lost_tokens += lost
        if sequence.pool_use is None:
            reason = report.reason.value if report.reason is not None else None
            from_ssd = min(pulled, report.from_ssd // width * block_tokens)
            sequence.pool_use = PoolUse(pulled, lost, reason, from_ssd)
            sequence.cached_tokens = (sequence.cached_tokens or 0) + pulled

    def note_full(self, sequence: LiveSequence) -> None:
        """Request storing of blocks that became full. Call it after they were published.

        Effects: pins them until `stored`.
        """
        if not self._settings.pool:
            return
        tokens = sequence.reusable(sequence.num_computed)
        if not self._settings.store_decoded:
            tokens = min(tokens, len(sequence.spec.prompt))
        first = sequence.num_stored
        full = min(tokens // self._blocks.block_tokens, len(sequence.hashes))
        if full > first:
            self._store(sequence, first, full)
        if (
            sequence.spec.claim is not None
            and sequence.num_claimed < 0
            and sequence.num_computed >= sequence.prompt_tokens
        ):
            self.claim(sequence)

    def claim(self, sequence: LiveSequence) -> None:
        """Claim the blocks stored so far for the sequence's session: once its prompt is computed, and at its end.

        Rows that were claimed before are renewed. Skipped blocks are claimed as well, in case another instance has
        stored them.
        """
        claim = sequence.spec.claim
        if claim is None or not self._settings.pool:
            return
        runs: list[ClaimedBlocks] = []
        at, end = max(0, sequence.num_claimed), min(sequence.num_stored, len(sequence.hashes))
        for span in claim.spans:
            until = min(end, span.tokens // self._blocks.block_tokens) if span.tokens else end
            if until > at:
                runs.append(ClaimedBlocks(span.kind, span.ttl_s, tuple(self._blocks.run(sequence, at, until)[0])))
                at = until
        sequence.num_claimed = at
        order = BlockClaim(claim.session, claim.branch, sequence.sequence_id, tuple(runs))
        self._order(sequence.spec.namespace, (), (), order)

    def _store(self, sequence: LiveSequence, first: int, full: int) -> None:
        sequence.num_stored = full
        hashes, blocks = self._blocks.run(sequence, first, full)
        room = max(0, self._settings.max_store_blocks - self.pinned_blocks)
        if room < len(blocks):  # the start of a chain is worth more than its end
            self._skip(hashes[room:], sequence.spec.namespace)
        if room and blocks:
            self._order(sequence.spec.namespace, hashes[:room], blocks[:room])

    def hand_over(self) -> None:
        """Request storing of all skipped blocks that still exist, because the engine leaves.

        Effects: pins them until `stored`, in parts, since streams that still run here need blocks to grow.
        """
        self._leaving = True
        self._order_skipped()

    def _order_skipped(self) -> None:
        pool = self._blocks.pool
        room = max(self._settings.max_store_blocks, pool.num_free // 2) - self.pinned_blocks
        found: dict[str, list[tuple[BlockHash, BlockId]]] = {}
        while self._skipped and room > 0:
            prefix_hash = next(iter(self._skipped))
            namespace = self._skipped.pop(prefix_hash)
            for block in pool.match((prefix_hash,), 1):
                found.setdefault(namespace, []).append((prefix_hash, block))
                room -= 1
        for namespace, pairs in found.items():
            for first in range(0, len(pairs), _ORDER_BLOCKS):
                hashes, blocks = zip(*pairs[first : first + _ORDER_BLOCKS], strict=True)
                self._order(namespace, hashes, blocks)

    def _skip(self, hashes: Sequence[BlockHash], namespace: str) -> None:
        self.skipped_blocks += len(hashes)
        self._skipped.update(dict.fromkeys(hashes, namespace))
        while len(self._skipped) > self._blocks.pool.num_blocks:
            del self._skipped[next(iter(self._skipped))]

    def _order(
        self,
        namespace: str,
        hashes: Sequence[BlockHash],
        blocks: Sequence[BlockId],
        claim: BlockClaim | None = None,
    ) -> None:
        self._orders += 1
        pinned = tuple(blocks)
        self._blocks.pool.retain(pinned)
        self._pinned[self._orders] = pinned
        self.pinned_blocks += len(pinned)
        self._new.append(StoreOrder(self._orders, namespace, tuple(hashes), pinned, claim))

    def take_stores(self) -> tuple[StoreOrder, ...]:
        """Commands since the last call. Effects: empties the list."""
        if not self._new:
            return ()
        orders = tuple(self._new)
        self._new.clear()
        return orders

    def stored(self, order_id: int) -> None:
        """Process the end of a store order, executed or abandoned.

        Raises: LedgerError if it is unknown.
        Effects: unpins its blocks.
        """
        blocks = self._pinned.pop(order_id, None)
        if blocks is None:
            raise LedgerError(f"store order {order_id} finished twice, or was never issued")
        self.pinned_blocks -= len(blocks)
        self._blocks.pool.release(blocks)
        if self._leaving:
            self._order_skipped()
