"""Moves KV blocks between instances through UB shared memory.

An instance's KV arena lies in a UB segment of its own, so registering blocks copies nothing: a ticket says where they
are. A puller on the same node maps the segment by path and copies each block once, straight into its own arena, hashing
while it copies. Another node's bytes come through a `RemoteReader` (Ray's object store) behind the same call.
"""

from collections.abc import Callable, Iterable, Sequence

from hardware.errors import HardwareError
from hardware.ub.attachments import Attachments
from hardware.ub.copy import checksum, copy_checked
from hardware.ub.segment import UbSegment
from serving.errors import HandoffChecksumError, HandoffError, HandoffExpiredError
from serving.ids import BlockHash, BlockId, NodeId, ReplicaId
from serving.kvpool.context_cache import ArenaMirror
from serving.policy.request import BlockExtent, HandoffTicket

RemoteReader = Callable[[NodeId, str, Sequence[tuple[int, int]], int], Iterable[memoryview]]
"""(node, segment path, [(offset, bytes)], generation) -> one buffer per extent, in order. Raises: HandoffError."""


class UbTransport:
    """`KvTransport` over one UB segment per instance.

    Args:
        segment: the own one; stays open as long as the transport is used.
        arena: this instance's blocks, `num_blocks * block_bytes` writable bytes of the segment.
        arena_offset: where the arena starts inside the segment [bytes].
        generation: of the arena's region; readers refuse a region that has changed hands.
        layout: fingerprint of model, dtype and block shape; a ticket of another layout is refused.
        read_remote: how to read a segment of another node; None = single node.
        mirror: set when the KV cache is on an accelerator and the arena is only its image.
        on_moved: told the bytes of each completed pull.
    """

    def __init__(
        self,
        *,
        replica: ReplicaId,
        node: NodeId,
        segment: UbSegment,
        arena: memoryview,
        arena_offset: int,
        generation: int,
        block_bytes: int,
        layout: str,
        read_remote: RemoteReader | None = None,
        mirror: ArenaMirror | None = None,
        on_moved: Callable[[int], None] | None = None,
    ) -> None:
        self._replica = replica
        self._node = node
        self._segment_path = str(segment.path)
        self._arena = arena
        self._arena_offset = arena_offset
        self._generation = generation
        self._block_bytes = block_bytes
        self._layout = layout
        self._read_remote = read_remote
        self._mirror = mirror
        self._on_moved = on_moved
        self._others = Attachments()

    def register(
        self, ticket_id: str, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], computed_tokens: int
    ) -> HandoffTicket:
        """Describe `blocks` for a puller: offsets and checksums, no copy.

        Effects: none; the caller keeps the blocks pinned until they are released.
        """
        if self._mirror is not None:
            self._mirror.save(blocks)
        extents = tuple(
            BlockExtent(
                offset=self._arena_offset + block * self._block_bytes,
                checksum=checksum(self._block(block)),
                used_bytes=self._block_bytes,
                prefix_hash=hashes[i] if i < len(hashes) else BlockHash(b""),
            )
            for i, block in enumerate(blocks)
        )
        return HandoffTicket(
            ticket_id=ticket_id,
            source=self._replica,
            node_id=self._node,
            segment=self._segment_path,
            layout=self._layout,
            computed_tokens=computed_tokens,
            blocks=extents,
            generation=self._generation,
        )

    def pull(self, ticket: HandoffTicket, first_block: int, blocks: Sequence[BlockId]) -> int:
        """Copy the ticket's blocks from `first_block` on into own blocks, verifying each checksum.

        Returns: bytes moved.
        Raises: HandoffChecksumError when bytes differ from what was registered, HandoffExpiredError when the segment
            is gone, HandoffError when layouts differ or the source cannot be read.
        Effects: overwrites the given blocks, whole or in part, also when it raises.
        """
        if ticket.layout != self._layout:
            raise HandoffError(f"layout {ticket.layout} from {ticket.source} does not fit {self._layout}")
        extents = ticket.blocks[first_block : first_block + len(blocks)]
        if len(extents) != len(blocks):
            raise HandoffError(f"ticket {ticket.ticket_id} has {len(ticket.blocks)} blocks, not {len(blocks)} more")
        moved = 0
        for extent, block, source in zip(extents, blocks, self._sources(ticket, extents), strict=True):
            target = self._block(block)[: extent.used_bytes]
            if copy_checked(target, source) != extent.checksum:
                raise HandoffChecksumError(
                    f"block {block} of ticket {ticket.ticket_id} from {ticket.source} arrived with other bytes"
                )
            moved += extent.used_bytes
        if self._mirror is not None:
            self._mirror.load(blocks)
        if self._on_moved is not None:
            self._on_moved(moved)
        return moved

    def close(self) -> None:
        """Unmap the segments of others; the own one belongs to the instance."""
        self._others.close()

    def _block(self, block: BlockId) -> memoryview:
        return self._arena[block * self._block_bytes : (block + 1) * self._block_bytes]

    def _sources(self, ticket: HandoffTicket, extents: Sequence[BlockExtent]) -> Iterable[memoryview]:
        if ticket.node_id != self._node:
            if self._read_remote is None:
                raise HandoffError(f"ticket {ticket.ticket_id} lies on node {ticket.node_id}, out of reach")
            places = [(e.offset, e.used_bytes) for e in extents]
            return self._read_remote(ticket.node_id, ticket.segment, places, ticket.generation)
        try:
            segment = self._others.get(ticket.segment)
            return [segment.read(e.offset, e.used_bytes, ticket.generation) for e in extents]
        except HardwareError as error:
            self._others.forget(ticket.segment)
            raise HandoffExpiredError(f"segment {ticket.segment}: {error}") from error
