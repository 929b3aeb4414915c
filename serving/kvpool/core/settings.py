"""Settings of a memory server's ledger, given once, at its start."""

from dataclasses import dataclass


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
        quantum: sizes are rounded up to it [bytes]; 4096 with an SSD tier, which writes whole pages.
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
