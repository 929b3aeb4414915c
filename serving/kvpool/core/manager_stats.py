"""Counters of a memory server's ledger since its start, and its current holdings."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Events since the start; only grow.

    Args:
        lookups: hashes looked up. hits_dram, hits_ssd, misses: results of these.
        puts: entries committed. put_bytes: their bytes.
        present: reservations of entries that existed already.
        refused: reservations that were not granted, by reason (`full`, `quota`, `too large`).
        evicted_to_ssd: entries that left DRAM and are on SSD.
        evicted_dropped: entries that left DRAM for good.
        evicted_by_quota: entries that left both tiers to make room for their own namespace.
        evicted_from_ssd: copies that left SSD to make room there.
        spills, spill_failures: writes to SSD that succeeded, or failed.
        promotions, promotion_failures: entries loaded from SSD; those that were unreadable or found no room in time.
        prefetches: loads from SSD that were ordered before any reader asked for them.
        restored: entries found on SSD at the start.
        distrusted: entries removed for wrong bytes. moved: removed after a move to another server.
        deleted: entries removed with their namespace.
        leases_expired, reservations_expired: expired instead of released by their client.
        claims_broken: claimed entries that lost their protection because an allocation found no other room.
        superseded_bytes: of entries that nobody claims since a newer leaf of their session lacks them.
    """

    lookups: int = 0
    hits_dram: int = 0
    hits_ssd: int = 0
    misses: int = 0
    puts: int = 0
    put_bytes: int = 0
    present: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    evicted_to_ssd: int = 0
    evicted_dropped: int = 0
    evicted_by_quota: int = 0
    evicted_from_ssd: int = 0
    spills: int = 0
    spill_failures: int = 0
    promotions: int = 0
    promotion_failures: int = 0
    prefetches: int = 0
    restored: int = 0
    distrusted: int = 0
    moved: int = 0
    deleted: int = 0
    leases_expired: int = 0
    reservations_expired: int = 0
    claims_broken: int = 0
    superseded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counters, copied, and gauges of one moment.

    Args:
        dram_capacity_bytes: available for extents.
        dram_used_bytes: of extents in use, each with its share of waste: the fill that water marks are compared with.
        ssd_used_bytes: files on SSD, with those being written.
        entries: committed and visible. models: those of them that are models.
        leased, held: entries in use by readers, entries mapped by processes.
        writing, spilling, loading, waiting: entries reserved, on their way to SSD, from SSD, waiting for a load.
        hidden: entries that no lookup finds any more, whose extents are still in use.
        retained_bytes, pinned_bytes: of entries that claims guard.
    """

    counters: Counters
    dram_capacity_bytes: int
    dram_used_bytes: int
    ssd_capacity_bytes: int
    ssd_used_bytes: int
    entries: int
    models: int
    leased: int
    held: int
    writing: int
    spilling: int
    loading: int
    waiting: int
    hidden: int
    retained_bytes: int = 0
    pinned_bytes: int = 0
