"""The KV-cache pool over `FakeExecutor` arenas: one dictionary that every instance of a test shares."""

from collections.abc import Sequence

from serving.ids import BlockHash, BlockId
from serving.values.kv_hints import BlockClaim
from serving.values.layer_split import GONE, FetchedRows
from serving.values.pool_outcome import FetchReport, MissReason, StoreReport
from tests.fakes.executor import FakeExecutor


class FakePool:
    """Stored blocks, by namespace and hash."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, BlockHash], tuple[int, ...]] = {}
        self.drafts: dict[tuple[str, BlockHash], tuple[int, ...]] = {}
        """Their part in the draft layer, which also depends on the token after a block."""
        self.claims: list[tuple[str, BlockClaim]] = []


class FakeContextCache:
    """`ContextCache` of one instance.

    Args:
        executor: whose arena is filled and read.
    """

    def __init__(self, pool: FakePool, executor: FakeExecutor) -> None:
        self.pool = pool
        self.executor = executor
        self.lose_after: int | None = None
        """The next fetch loses all blocks after this many, and leaves garbage in them."""

    def fetch(
        self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId], rows: FetchedRows | None = None
    ) -> FetchReport:
        """Fill the leading known blocks; of rows, the required ones."""
        known = 0
        while known < len(hashes) and (namespace, hashes[known]) in self.pool.blocks:
            known += 1
        keep = known if self.lose_after is None else min(known, self.lose_after)
        self.lose_after = None
        if rows is not None:
            return self._fetch_rows(namespace, hashes, blocks, rows, known, keep)
        for block, prefix_hash in zip(blocks[:keep], hashes, strict=False):
            self.executor.arena[block][:] = self.pool.blocks[namespace, prefix_hash]
            self.executor.draft_arena[block][:] = self.pool.drafts[namespace, prefix_hash]
        for block in blocks[keep:]:
            self.executor.arena[block][:] = [-7] * self.executor.block_tokens
            self.executor.draft_arena[block][:] = [-7] * self.executor.block_tokens
        reason = MissReason.CHECKSUM if keep < known else None
        return FetchReport(keep, lost_blocks=known - keep, reason=reason)

    def _fetch_rows(
        self,
        namespace: str,
        hashes: Sequence[BlockHash],
        blocks: Sequence[BlockId],
        rows: FetchedRows,
        known: int,
        keep: int,
    ) -> FetchReport:
        needed = rows.needed(known)
        for block in set(blocks) - {GONE}:
            self.executor.arena[block][:] = [-7] * self.executor.block_tokens
        for index in needed[:keep]:
            self.executor.arena[blocks[index]][:] = self.pool.blocks[namespace, hashes[index]]
        whole = known // rows.split.width * rows.split.width
        if keep < len(needed):
            return FetchReport(0, lost_blocks=whole, reason=MissReason.CHECKSUM)
        return FetchReport(whole)

    def store(self, namespace: str, hashes: Sequence[BlockHash], blocks: Sequence[BlockId]) -> StoreReport:
        """Store copies; asserts that known blocks have the same content."""
        present = 0
        for block, prefix_hash in zip(blocks, hashes, strict=True):
            content = tuple(self.executor.arena[block])
            assert -1 not in content, "a block was stored before it was full"
            known = self.pool.blocks.setdefault((namespace, prefix_hash), content)
            assert known == content, "equal hashes, other tokens"
            self.pool.drafts.setdefault((namespace, prefix_hash), tuple(self.executor.draft_arena[block]))
            present += known is not content
        return StoreReport(stored=len(blocks) - present, present=present)

    def claim(self, namespace: str, claims: Sequence[BlockClaim]) -> None:
        """Keep the claims, and assert that their blocks were stored."""
        for claim in claims:
            assert all((namespace, hash) in self.pool.blocks for run in claim.runs for hash in run.hashes)
            self.pool.claims.append((namespace, claim))
