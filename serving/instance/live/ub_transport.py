"""Moves KV blocks between instances through UB shared memory.

An instance's KV arena is in its own UB segment, so registering blocks copies no data: a ticket contains their location.

A puller on the same node maps the segment by path and copies each block once, directly into its own arena, hashing
while it copies. Another host's bytes arrive through a `RemoteReader` (TCP, `segment_reader.py`) with the same
interface. Pulls may run concurrently. Their outcomes are reported to `LinkProbes`, which reads dummies in between;
pulls of an isolated pair are refused immediately instead of timing out.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from hardware.errors import HardwareError
from hardware.ub.copy import checksum, copy_checked
from hardware.ub.segment import Attachments, UbSegment
from serving.errors import HandoffChecksumError, HandoffError, HandoffExpiredError, HandoffTimeoutError
from serving.ids import BlockHash, BlockId, NodeId, ReplicaId
from serving.instance.live.link_probe import LinkProbes, PeerMemory
from serving.instance.live.segment_reader import SegmentPlace
from serving.kvpool.live.context_cache import ArenaMirror
from serving.values.health import LinkLimits
from serving.values.sequence import BlockExtent, HandoffTicket

RemoteReader = Callable[[SegmentPlace, Sequence[tuple[int, int]], Sequence[memoryview]], Sequence[int]]
"""(segment, [(offset, bytes)], targets) -> checksums of the received bytes. Raises: HandoffError."""

DUMMY_BYTES = 4096
"""Size of a dummy: one page, enough to use the same path as blocks."""
NO_PROBES = LinkLimits(period_s=0.0, late_s=1.0, lost_s=1.0)


class LinkFaults(Protocol):
    """Damage to the path of KV blocks, injected by tests and by `cloudmatrix chaos`."""

    def __call__(self, peer: ReplicaId, nbytes: int) -> float | None:
        """Called before bytes of `peer` are read.

        Returns: their delay [s]; None = they never arrive.
        """
        ...


class UbTransport:
    """`KvTransport` over one UB segment per instance.

    Args:
        segment: this instance's own; stays open while the transport is used.
        arena: this instance's blocks, `num_blocks * block_bytes` writable bytes of the segment.
        arena_offset: offset of the arena inside the segment [bytes].
        generation: of the arena's region; readers refuse a region with another owner.
        layout: fingerprint of model, dtype and block shape; a ticket of another layout is refused.
        read_remote: reads a segment of another node; None = single node.
        served_at: address at which other hosts read this segment; ("", 0) = none.
        mirror: set if the KV cache is on an accelerator and the arena only mirrors it.
        on_moved: called with the bytes of each completed pull.
        limits: when dummies are read, and the thresholds for late and lost.
        faults: injected link faults; None = none.
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
        served_at: Callable[[], tuple[str, int]] = lambda: ("", 0),
        mirror: ArenaMirror | None = None,
        on_moved: Callable[[int], None] | None = None,
        limits: LinkLimits = NO_PROBES,
        faults: LinkFaults | None = None,
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
        self._served_at = served_at
        self._mirror = mirror
        self._on_moved = on_moved
        self._others = Attachments()
        self._lock = threading.Lock()
        """Protects data shared by pulls: mapped segments, the mirror, the counters behind `on_moved`."""
        self._faults = faults
        self._lost_s = limits.lost_s
        self._closed = threading.Event()
        self.probes = LinkProbes(self.read_dummy, limits)

    def register(
        self, ticket_id: str, blocks: Sequence[BlockId], hashes: Sequence[BlockHash], computed_tokens: int
    ) -> HandoffTicket:
        """Describe `blocks` for a puller: offsets and checksums, no copy.

        The caller keeps the blocks pinned until they are released.
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
        host, port = self._served_at()
        return HandoffTicket(
            ticket_id=ticket_id,
            source=self._replica,
            node_id=self._node,
            segment=self._segment_path,
            layout=self._layout,
            computed_tokens=computed_tokens,
            blocks=extents,
            generation=self._generation,
            host=host,
            port=port,
        )

    def pull(self, ticket: HandoffTicket, first_block: int, blocks: Sequence[BlockId]) -> int:
        """Copy the ticket's blocks from `first_block` on into own blocks, verifying each checksum.

        Returns: bytes moved.
        Raises: HandoffChecksumError if bytes differ from the registered ones, HandoffExpiredError if the segment
            no longer exists, HandoffTimeoutError if no data arrives, or the pair is isolated because none arrived
            recently; HandoffError if layouts differ or the source cannot be read.
        Effects: overwrites the given blocks, fully or partly, even on an error; reports the outcome to the probes.
        """
        if ticket.layout != self._layout:
            raise HandoffError(f"layout {ticket.layout} from {ticket.source} does not fit {self._layout}")
        extents = ticket.blocks[first_block : first_block + len(blocks)]
        if len(extents) != len(blocks):
            raise HandoffError(f"ticket {ticket.ticket_id} has {len(ticket.blocks)} blocks, not {len(blocks)} more")
        if self.probes.isolated(ticket.source):
            raise HandoffTimeoutError(f"the path from {ticket.source} is isolated: no data arrives")
        if ticket.blocks:
            self.probes.meet(_memory_of(ticket))
        try:
            moved = self._copy(ticket, extents, blocks)
        except HandoffTimeoutError:
            self.probes.missed(ticket.source)
            raise
        self.probes.arrived(ticket.source)
        with self._lock:
            if self._mirror is not None:
                self._mirror.load(blocks)
            if self._on_moved is not None:
                self._on_moved(moved)
        return moved

    def read_dummy(self, peer: PeerMemory) -> None:
        """Read a page of a source, as a pull would.

        Raises: HandoffExpiredError if its segment no longer exists, HandoffTimeoutError if no data arrives,
            HandoffError if it cannot be read.
        """
        nbytes = min(peer.nbytes, DUMMY_BYTES)
        if peer.node == self._node:
            self._require_owner(peer.place.path)
        self._suffer(peer.replica, nbytes)
        self._read(peer.node, peer.place, [(peer.offset, nbytes)], [memoryview(bytearray(nbytes))])

    def close(self) -> None:
        """Stop the probes and unmap other instances' segments; the instance owns its own."""
        self._closed.set()
        self.probes.stop()
        with self._lock:
            self._others.close()

    def _copy(self, ticket: HandoffTicket, extents: Sequence[BlockExtent], blocks: Sequence[BlockId]) -> int:
        self._suffer(ticket.source, sum(extent.used_bytes for extent in extents))
        places = [(e.offset, e.used_bytes) for e in extents]
        targets = [self._block(block)[: e.used_bytes] for e, block in zip(extents, blocks, strict=True)]
        digests = self._read(ticket.node_id, place_of(ticket), places, targets)
        for extent, block, digest in zip(extents, blocks, digests, strict=True):
            if digest != extent.checksum:
                raise HandoffChecksumError(
                    f"block {block} of ticket {ticket.ticket_id} from {ticket.source} arrived with different bytes"
                )
        return sum(map(len, targets))

    def _suffer(self, peer: ReplicaId, nbytes: int) -> None:
        """Apply the delay of an injected fault, or time out."""
        delay_s = 0.0 if self._faults is None else self._faults(peer, nbytes)
        if delay_s != 0.0:
            self._closed.wait(self._lost_s if delay_s is None else delay_s)
        if delay_s is None:
            raise HandoffTimeoutError(f"nothing arrived from {peer} within {self._lost_s} s")

    def _block(self, block: BlockId) -> memoryview:
        return self._arena[block * self._block_bytes : (block + 1) * self._block_bytes]

    def _require_owner(self, path: str) -> None:
        """Check that a mapped segment's owner is alive, since dummies must not keep its memory mapped after its end.

        Raises: HandoffExpiredError if the owner has ended. Effects: unmaps the segment in that case.
        """
        with self._lock, contextlib.suppress(HardwareError):  # the read itself will report it
            if not self._others.get(path).owner.is_alive():
                self._others.forget(path)
                raise HandoffExpiredError(f"segment {path}: its owner has exited")

    def _read(
        self,
        node: NodeId,
        place: SegmentPlace,
        extents: Sequence[tuple[int, int]],
        targets: Sequence[memoryview],
    ) -> Sequence[int]:
        """Copy extents into their targets. Returns: checksums of the received bytes."""
        if node != self._node:
            if self._read_remote is None or not place.port:
                raise HandoffError(f"{place.path} is on node {node}, which this process cannot reach")
            return self._read_remote(place, extents, targets)
        with self._lock:
            try:
                segment = self._others.get(place.path)
                sources = [segment.read(offset, nbytes, place.generation) for offset, nbytes in extents]
            except HardwareError as error:
                self._others.forget(place.path)
                raise HandoffExpiredError(f"segment {place.path}: {error}") from error
        return [copy_checked(target, source) for target, source in zip(targets, sources, strict=True)]


def place_of(ticket: HandoffTicket) -> SegmentPlace:
    """The segment that contains a ticket's blocks."""
    return SegmentPlace(ticket.host, ticket.port, ticket.segment, ticket.generation)


def _memory_of(ticket: HandoffTicket) -> PeerMemory:
    first = ticket.blocks[0]
    return PeerMemory(ticket.source, ticket.node_id, place_of(ticket), first.offset, first.used_bytes)
