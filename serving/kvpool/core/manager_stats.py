"""Counters of a memory server's ledger since it began, and its present holdings."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Events since the start; only grow.

    Args:
        lookups: hashes asked for. hits_dram, hits_ssd, misses: what came of them.
        puts: entries committed. put_bytes: their bytes.
        present: wishes to write what was there already.
        refused: wishes to write that could not be granted, by reason (`full`, `quota`, `too large`).
        evicted_to_ssd: entries that left DRAM and are on SSD.
        evicted_dropped: entries that left DRAM for good.
        evicted_by_quota: entries that left both tiers to make room for their own namespace.
        evicted_from_ssd: copies that left SSD to make room there.
        spills, spill_failures: writes to SSD that ended well, or not.
        promotions, promotion_failures: entries loaded from SSD; those that were unreadable or found no room in time.
        restored: entries found on SSD at start.
        distrusted: entries removed for wrong bytes. moved: removed because they live elsewhere now.
        deleted: entries removed with their namespace.
        leases_expired, reservations_expired: ended by time, not by their client.
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
    restored: int = 0
    distrusted: int = 0
    moved: int = 0
    deleted: int = 0
    leases_expired: int = 0
    reservations_expired: int = 0


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counters, copied, and gauges of one moment.

    Args:
        dram_capacity_bytes: what can be given out.
        dram_used_bytes: what is given out, each extent with its share of waste: the fill that water marks look at.
        ssd_used_bytes: files on SSD, with those being written.
        entries: committed and visible. models: those of them that are models.
        leased, held: entries in use by readers, entries mapped by processes.
        writing, spilling, loading, waiting: entries reserved, on their way to SSD, from SSD, wanted from SSD.
        hidden: entries that no lookup finds any more, whose extents are still in use.
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
