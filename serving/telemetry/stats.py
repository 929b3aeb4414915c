"""One instance's snapshot, in its replica's report to a gateway."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from serving.ids import ReplicaId
from serving.values.expert_map import ExpertFacts
from serving.values.instances import EngineSnapshot

# Statistics of the KV-cache pool: an instance's use of it, and a memory server's own counts.


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
        loads: entries loaded from SSD to memory, by cause: `demanded` by a reader, or `ahead` of one.
        damaged: entries that failed their integrity check, by tier; removed, never served.
        latencies: by operation.
        namespaces: bytes held, by tenant and tier.
        claimed_bytes: in memory for sessions, by class: `retain`, `pin`.
        claims_broken: claimed entries that lost their protection to an allocation.
        superseded_bytes: released since a newer turn of their session lacks them.
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
    loads: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, int] = field(default_factory=dict)
    latencies: Mapping[str, OperationLatencies] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    claimed_bytes: Mapping[str, int] = field(default_factory=dict)
    claims_broken: int = 0
    superseded_bytes: int = 0
    heard: bool = True
    told: float = 0.0


# Handoffs by the node that they were pulled from: durations, bytes and failures, as the puller measured them.
#
# Both ends of a duration are readings of the puller's own clock, so that hosts' clocks need not agree.

BOUNDS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""From a few blocks through shared memory to a pull that outlasts its ticket."""
MOST_SOURCES = 32
"""Source nodes with a row each; further ones share one, `OTHER`."""
OTHER = "other"


@dataclass(frozen=True, slots=True)
class HandoffPath:
    """Handoff pulls of one instance from one node since the instance started.

    Args:
        source, target: the nodes; the puller is on `target`.
        moved_bytes: of successful pulls only, like `latencies`.
    """

    source: str
    target: str
    moved_bytes: int
    failures: int
    latencies: OperationLatencies


def handoff_paths(facts: Mapping[str, Sequence[float]], target: str) -> tuple[HandoffPath, ...]:
    """Counts that an instance on `target` announced, as values."""
    return tuple(
        HandoffPath(
            source,
            target,
            int(row[0]),
            int(row[1]),
            OperationLatencies(BOUNDS_S, tuple(int(count) for count in row[3:]), float(row[2])),
        )
        for source, row in facts.items()
    )


def between_hosts(paths: Iterable[HandoffPath], hosts: Mapping[str, str]) -> tuple[HandoffPath, ...]:
    """The same with the nodes' display names; a node without one keeps its id."""
    return tuple(
        replace(path, source=hosts.get(path.source, path.source), target=hosts.get(path.target, path.target))
        for path in paths
    )


# One instance's snapshot, in its replica's report to a gateway.

ITERATION_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds for the tokens of one step. Source: vLLM's `iteration_tokens_total`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStats(EngineSnapshot):
    """Statistics of an engine and of its process.

    Args:
        pool: name of its engine pool.
        busy_s: time spent in finished steps [s].
        predicted_s: duration of those steps on real NPUs [s]; 0 if unknown.
        pool_use: its use of the KV-cache pool; None without one.
        rank, experts: of a rank of a group, its number and its facts about experts; otherwise 0 and None.
        paths: its pulls of handoffs, by the nodes of both ends.
        lost_paths, slow_paths: instances from which this one receives no KV blocks, or receives them late.
        told_s: the instance's own clock at this report [s]; larger = later.
    """

    replica: ReplicaId
    pool: str
    npus: int = 0
    hbm_capacity_bytes: int = 0
    hbm_used_bytes: int = 0
    block_tokens: int = 0
    busy_s: float = 0.0
    predicted_s: float = 0.0
    pool_use: PoolClientStats | None = None
    rank: int = 0
    experts: ExpertFacts | None = None
    paths: tuple[HandoffPath, ...] = ()
    lost_paths: int = 0
    slow_paths: int = 0
    told_s: float = 0.0
