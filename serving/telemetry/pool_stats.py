"""Statistics of the KV-cache pool: an instance's use of it, and a memory server's own counts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OperationLatencies:
    """Durations of an operation.

    Args:
        bounds_s: upper bounds of the buckets, inclusive, increasing [s].
        counts: per bucket, not cumulative, and one more for larger values.
    """

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class PoolClientStats:
    """Use of the pool by one instance since it started.

    Args:
        blocks: blocks looked up, by result: `dram`, `ssd` (where they were found), `absent`, `lost`.
        lost: blocks that should have been found but were not, by reason.
        stored: blocks that this instance published first; `present` were in the pool already.
        dropped: blocks not published, by reason.
        moved_bytes: by direction, `get` and `put`.
        latencies: of `lookup`, `get` and `put`.
    """

    lookups: int = 0
    blocks: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)
    stored: int = 0
    present: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, OperationLatencies] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemoryServerStats:
    """One memory server. Gauges are present values, counters since it started.

    Args:
        weight: share of its part of the ring that is in use; 0 = draining.
        used_bytes, capacity_bytes: by tier, `dram` and `ssd`.
        hits: entries found by lookups, by tier. A lookup queries two servers per block, so a miss at one server is not
            a miss of the pool.
        evictions: entries that left a tier for lack of capacity, by kind: `to_ssd`, `dropped`, `quota`, `from_ssd`.
        refused: rejected entries, by reason.
        moved_bytes: by operation: `found_dram`, `written`, `sent`, `received`, `ssd_read`, ...
        damaged: entries that failed their integrity check, by tier; removed, never served.
        latencies: by operation.
        namespaces: bytes held, by tenant and tier.
        heard: whether it has reported since the pool's controller started; otherwise its numbers are unknown, not zero.
        told: time served at this report [s]; larger = later.
    """

    server: str
    weight: float
    entries: int = 0
    used_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity_bytes: Mapping[str, int] = field(default_factory=dict)
    hits: Mapping[str, int] = field(default_factory=dict)
    misses: int = 0
    evictions: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, OperationLatencies] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    heard: bool = True
    told: float = 0.0
