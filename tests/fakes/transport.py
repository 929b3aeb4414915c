"""KV transports over `FakeExecutor` arenas: every replica of a test in one dictionary."""

from collections.abc import Sequence
from struct import pack
from zlib import crc32

from serving.errors import HandoffChecksumError, HandoffError, HandoffExpiredError
from serving.ids import BlockHash, BlockId, NodeId, ReplicaId
from serving.values.sequence import BlockExtent, HandoffTicket
from tests.fakes.executor import FakeExecutor
from tests.fakes.windowed_executor import WindowedExecutor

TOKEN_BYTES = 4


class FakeFabric:
    """The network between the replicas; a replica missing in it is unreachable."""

    def __init__(self) -> None:
        self.transports: dict[ReplicaId, FakeTransport] = {}


class FakeTransport:
    """`KvTransport` of one replica."""

    def __init__(self, fabric: FakeFabric, replica: ReplicaId, executor: FakeExecutor) -> None:
        """Effects: joins the fabric."""
        self.fabric = fabric
        self.replica = replica
        self.executor = executor
        self.registered: dict[str, tuple[BlockId, ...]] = {}
        self.fail_next: HandoffError | None = None
        """Raised by the next pull, after it has copied one block."""
        self.whole_blocks = isinstance(executor, WindowedExecutor)
        """A ticket's blocks are not one for each row of a table."""
        fabric.transports[replica] = self

    def register(
        self, ticket_id: str, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], computed_tokens: int
    ) -> HandoffTicket:
        """Describe blocks of this replica."""
        size = self.executor.block_tokens
        extents = []
        for index, block in enumerate(blocks):
            used = size if self.whole_blocks else min(size, computed_tokens - index * size)
            prefix_hash = hashes[index] if index < len(hashes) else BlockHash(b"")
            extents.append(BlockExtent(block * size * TOKEN_BYTES, self.checksum(block, used), used * 4, prefix_hash))
        self.registered[ticket_id] = tuple(blocks)
        return HandoffTicket(
            ticket_id,
            self.replica,
            NodeId("node"),
            f"/{self.replica}",
            f"tokens/{size}",
            computed_tokens,
            tuple(extents),
        )

    def withdraw(self, ticket_id: str) -> None:
        """Allow the blocks of a ticket to change."""
        self.registered.pop(ticket_id, None)

    def pull(self, ticket: HandoffTicket, first_block: int, blocks: Sequence[BlockId]) -> int:
        """Copy blocks from the ticket's source.

        Raises: HandoffError (unreachable), HandoffExpiredError, HandoffChecksumError, or what `fail_next` holds.
        """
        source = self.fabric.transports.get(ticket.source)
        if source is None:
            raise HandoffError(f"{ticket.source} is unreachable")
        moved = 0
        for extent, target in zip(ticket.blocks[first_block:], blocks, strict=True):
            if self.fail_next is not None and moved:
                error, self.fail_next = self.fail_next, None
                raise error
            if ticket.ticket_id not in source.registered:
                raise HandoffExpiredError(f"{ticket.source} no longer holds {ticket.ticket_id}")
            block = BlockId(extent.offset // (self.executor.block_tokens * TOKEN_BYTES))
            used = extent.used_bytes // TOKEN_BYTES
            if source.checksum(block, used) != extent.checksum:
                raise HandoffChecksumError(f"block {block} of {ticket.source} has changed")
            self.executor.arena[target][:used] = source.executor.arena[block][:used]
            self.executor.draft_arena[target][:used] = source.executor.draft_arena[block][:used]
            moved += extent.used_bytes
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        return moved

    def checksum(self, block: BlockId, used: int) -> int:
        return crc32(pack(f"<{used}i", *self.executor.arena[block][:used]))
