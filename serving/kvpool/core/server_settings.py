"""Settings of one memory server: its share of memory and disk, its address and its clients' secret."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hardware.units import KIB, MIB
from serving.config.cluster import ANY_PORT, PortRange
from serving.config.kv_events import KvEventsConfig
from serving.config.kvcache import Eviction, KvCacheConfig
from serving.ids import NodeId
from serving.sockets.secrets import ClusterSecrets

# Settings of a memory server's ledger, given once, at its start.


@dataclass(frozen=True, slots=True)
class ClaimSettings:
    """Limits of claims on one memory server, see `guards.py`.

    Args:
        retain_share: of the memory that claims of one namespace may guard, 0 to 1. pin_share: that all pins may.
        max_ttl_s: longest time from a claim to its end, however often it is renewed.
        sessions: of a namespace; the one whose claims are oldest is forgotten for a new one.
        branches: of a session, likewise.
    """

    retain_share: float = 0.5
    pin_share: float = 0.0
    max_ttl_s: float = 3600.0
    sessions: int = 10_000
    branches: int = 16


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Sizes and rules of one memory server.

    Args:
        capacity_bytes: of the region in DRAM.
        base_offset: of the region in the segment; offsets in results are relative to the segment.
        slab_bytes: memory moves between block sizes in pieces of this size; a small region has smaller ones, down to
            64 KiB, so that there are 64 of them.
        ssd_bytes: room on SSD; 0 = no SSD tier.
        high_water: fill of DRAM at which eviction starts, 0 to 1.
        low_water: fill at which eviction stops.
        write_through: write each entry to SSD when it is committed, not only when it leaves DRAM.
        eviction: `lru`, `lfu`, `fifo` or `cost`.
        lease_s: default lease of a found entry.
        write_lease_s: how long a writer may take between reserve and commit.
        max_spills: maximum of concurrent writes to SSD.
        prefetch_share: bytes that may be on their way from SSD ahead of readers, as a share of the region.
        quantum: sizes are rounded up to it [bytes]; 4096 with an SSD tier, which writes whole pages.
        claims: limits of claims.
    """

    capacity_bytes: int
    base_offset: int = 0
    slab_bytes: int = 2 << 20
    ssd_bytes: int = 0
    high_water: float = 0.95
    low_water: float = 0.85
    write_through: bool = False
    eviction: str = "lru"
    lease_s: float = 5.0
    write_lease_s: float = 10.0
    max_spills: int = 64
    quantum: int = 4096
    claims: ClaimSettings = ClaimSettings()
    prefetch_share: float = 0.1


# Settings of one memory server: its share of memory and disk, its address and its clients' secret.


def water_marks(config: KvCacheConfig) -> tuple[float, float]:
    """High and low water mark of a server's memory, as shares of it.

    Without a second tier evicted entries need no write, so early eviction has no benefit.
    """
    return (config.high_water, config.low_water) if config.ssd_mib else (1.0, 1.0)


def claim_settings(config: KvCacheConfig) -> ClaimSettings:
    """Limits of claims from `[kvcache]`."""
    return ClaimSettings(config.retain_share, config.pin_share, config.max_ttl_s, config.sessions, config.branches)


@dataclass(frozen=True, slots=True)
class PoolEvents:
    """Publishing of a memory server's KV events.

    Args:
        model: whose blocks the pool has, for the topic.
        rank: tells this server apart from the others, which have the same topic.
    """

    config: KvEventsConfig
    model: str
    block_tokens: int
    rank: int


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One memory server.

    Args:
        node: on which it runs; its clients of the same node map its segment.
        secret: that clients must prove.
        capacity_bytes: of its UB segment.
        segment_folder, segment_prefix: the segment's file is `<folder>/<prefix><incarnation>`; stale files of the same
            prefix are removed at the start, so only servers of this cluster may use it.
        name: in the ring; empty = made of node and SSD slot, so that a replacement owns the keys of its predecessor.
        host: to listen on.
        ports: range of ports; the server listens on a free one.
        ssd_folder: with one subfolder (slot) per server; None = no SSD tier.
        max_connections: a further client gets `Failed`.
        quantum: sizes of entries are rounded up to it [bytes].
        claims: limits of claims.
        prefetch_share: see `ManagerSettings`.
        reserve: allocate all memory at the start, see `UbSegment.create`.
        disk_full: returns whether to simulate a full disk, for tests; None = never.
        events: what to publish of its entries; None = nothing.
    """

    node: NodeId
    secret: str | ClusterSecrets = field(repr=False)
    capacity_bytes: int
    segment_folder: Path
    segment_prefix: str
    name: str = ""
    host: str = "127.0.0.1"
    ports: PortRange = ANY_PORT
    ssd_folder: Path | None = None
    ssd_bytes: int = 0
    slab_bytes: int = 2 * MIB
    high_water: float = 0.95
    low_water: float = 0.85
    write_through: bool = False
    eviction: Eviction = "lru"
    lease_s: float = 5.0
    write_lease_s: float = 10.0
    max_connections: int = 256
    quantum: int = 4096
    claims: ClaimSettings = ClaimSettings()
    prefetch_share: float = 0.1
    reserve: bool = True
    disk_full: Callable[[], bool] | None = field(default=None, repr=False)
    events: PoolEvents | None = None

    @classmethod
    def of(
        cls,
        config: KvCacheConfig,
        *,
        node: NodeId,
        secret: str | ClusterSecrets,
        segment_folder: Path,
        segment_prefix: str,
        host: str = "127.0.0.1",
        ssd_folder: Path | None = None,
        name: str = "",
    ) -> Self:
        """Settings from `[kvcache]`.

        Args:
            ssd_folder: of the SSD tier when `ssd_path` is empty; unused without `ssd_mib`.
        """
        high_water, low_water = water_marks(config)
        folder = Path(config.ssd_path) if config.ssd_path else ssd_folder
        return cls(
            node=node,
            secret=secret,
            capacity_bytes=config.ub_memory_mib * MIB,
            segment_folder=segment_folder,
            segment_prefix=segment_prefix,
            name=name,
            host=host,
            ssd_folder=folder if config.ssd_mib else None,
            ssd_bytes=config.ssd_mib * MIB if folder is not None else 0,
            slab_bytes=config.slab_kib * KIB,
            high_water=high_water,
            low_water=low_water,
            write_through=config.write_through,
            eviction=config.eviction,
            lease_s=config.lease_s,
            write_lease_s=config.write_lease_s,
            claims=claim_settings(config),
            prefetch_share=config.prefetch_share,
        )

    def manager(self, base_offset: int, ssd_bytes: int) -> ManagerSettings:
        """Settings of the ledger of a region at `base_offset`, with the disk that is available."""
        return ManagerSettings(
            capacity_bytes=self.capacity_bytes,
            base_offset=base_offset,
            slab_bytes=self.slab_bytes,
            ssd_bytes=ssd_bytes,
            high_water=self.high_water,
            low_water=self.low_water,
            write_through=self.write_through,
            eviction=self.eviction,
            lease_s=self.lease_s,
            write_lease_s=self.write_lease_s,
            quantum=self.quantum,
            claims=self.claims,
            prefetch_share=self.prefetch_share,
        )
