"""One memory server in virtual time: the real ledger, and a disk that takes as long as its bytes need.

Bytes are accounted, never filled. The disk reads and writes one entry after the other, so a load waits for earlier
spills, as on a busy disk.
"""

from collections import deque
from collections.abc import Sequence

from hardware.units import KIB, MIB
from serving.config.kvcache import KvCacheConfig
from serving.ids import NodeId
from serving.kvpool.core.entry import LoadFromSsd, Order, Space, Spill, Unlink
from serving.kvpool.core.inventory import SLABS
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager
from serving.kvpool.core.server_settings import claim_settings, water_marks
from serving.kvpool.core.shelf import Shelf
from serving.kvpool.core.slab_allocator import QUANTUM
from serving.kvpool.core.ssd_restore import KeptFile
from serving.values.kv_hints import BlockClaim, HintOutcome
from serving.values.pool_view import ServerRecord, ServerState
from serving.virtual.memory_values import PoolCounters

LAYOUT = "simulated"
_SLAB_BLOCKS = 16
"""Blocks of a slab: the ledger then has few spans to keep."""
_VERSIONS = 1 << 40
"""Number of versions of one incarnation; those of the next one follow."""


def manager_settings(config: KvCacheConfig, block_bytes: int) -> ManagerSettings:
    """The ledger's settings from `[kvcache]`, with sizes as accounted bytes.

    Slabs are whole blocks, so that no server loses the end of each slab, which no block fits in. A slab has a few
    blocks, chosen to leave little unused at the end of the region, or as many as `[kvcache] slab_kib` holds if those
    are more.

    Args:
        block_bytes: of one KV block.
    """
    high_water, low_water = water_marks(config)
    size = -(-block_bytes // QUANTUM) * QUANTUM
    blocks = config.ub_memory_mib * MIB // size
    most = max(1, min(_SLAB_BLOCKS, blocks // SLABS))
    in_slab = min(range(-(-most // 2), most + 1), key=lambda count: (blocks % count, -count))
    return ManagerSettings(
        capacity_bytes=config.ub_memory_mib * MIB,
        slab_bytes=max(config.slab_kib * KIB // size, in_slab) * size,
        ssd_bytes=config.ssd_mib * MIB,
        high_water=high_water,
        low_water=low_water,
        write_through=config.write_through,
        eviction=config.eviction,
        lease_s=config.lease_s,
        write_lease_s=config.write_lease_s,
        claims=claim_settings(config),
        prefetch_share=config.prefetch_share,
    )


class VirtualServer:
    """One memory server.

    Attributes:
        incarnation: distinguishes it from its predecessors of the same name.
        up: it responds.
        leave_by: when it ends, once it drains.
        left: entries that another server should have, by the latest count.
        tick_at: when the ledger's `tick` is due at the latest; None = never.
    """

    def __init__(
        self, name: str, incarnation: int, settings: ManagerSettings, now: float, ssd_bytes_per_s: float
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.born = now
        self.up = True
        self.state = ServerState.ACTIVE
        self.leave_by: float | None = None
        self.left = 0
        self.tick_at: float | None = None
        self.manager = MemoryManager(settings, first_version=incarnation * _VERSIONS + 1)
        self._shelves: dict[str, Shelf] = {}
        self._ssd_bytes_per_s = ssd_bytes_per_s
        self._disk: deque[tuple[float, Spill | LoadFromSsd]] = deque()
        self._disk_free_at = now

    def record(self, now: float) -> ServerRecord:
        """The server's announcement."""
        capacity = self.manager.settings.capacity_bytes
        place = (NodeId(self.name), "", 0, "", 0, capacity)
        return ServerRecord(self.name, str(self.incarnation), *place, self.state, now - self.born)

    def shelf(self, namespace: str) -> Shelf:
        """The server's entries of a namespace."""
        shelf = self._shelves.get(namespace)
        if shelf is None:
            shelf = self._shelves[namespace] = self.manager.shelf(Space(namespace, LAYOUT))
        return shelf

    def claim(self, namespace: str, claim: BlockClaim, now: float) -> HintOutcome:
        """Claim blocks for a session."""
        return self.manager.claims.claim(Space(namespace, LAYOUT), claim, now)

    # Disk

    @property
    def disk_due(self) -> float | None:
        """When the next read or write of its disk ends."""
        return self._disk[0][0] if self._disk else None

    @property
    def disk_free_at(self) -> float:
        """When all reads and writes that were handed to its disk have ended."""
        return self._disk_free_at

    def take_orders(self, now: float) -> None:
        """Hand the ledger's orders to the disk."""
        orders: Sequence[Order] = self.manager.take_orders()
        for order in orders:
            if not isinstance(order, Unlink):
                self._disk_free_at = max(now, self._disk_free_at) + order.nbytes / self._ssd_bytes_per_s
                self._disk.append((self._disk_free_at, order))

    def end_disk_work(self, now: float) -> None:
        """Report the disk work that is complete by now to the ledger."""
        while self._disk and self._disk[0][0] <= now:
            due, order = self._disk.popleft()
            if isinstance(order, Spill):
                self.manager.spilled(order.version, True, due)
            else:
                self.manager.loaded(order.version, True, due)

    def kept(self) -> list[KeptFile]:
        """Files of the server's SSD folder. Each belongs to an entry: the disk is derived from the ledger."""
        return [
            KeptFile(one.space, one.hash, one.kind, one.nbytes, one.checksum, one.last_use)
            for one in self.manager.entries()
            if one.on_ssd
        ]

    def counters(self) -> PoolCounters:
        """The part of the pool's counters that ledgers know."""
        counted = self.manager.stats().counters
        evicted = counted.evicted_to_ssd + counted.evicted_dropped + counted.evicted_by_quota + counted.evicted_from_ssd
        return PoolCounters(evicted=evicted, spilled=counted.spills, promoted=counted.promotions)
