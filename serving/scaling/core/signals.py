"""Signals for a scaler, computed from the board's snapshots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.config.serve import ServeConfig
from serving.scaling.core.capacity import CROWD_SPREAD, TPOT_SPREAD, Abilities
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment, SeenMember
from serving.scaling.core.node_room import NodeRoom
from serving.scaling.core.replica_room import ReplicaSize
from serving.scaling.core.totals import SourceTotals
from serving.values.group import RankRole
from serving.values.signals import CacheSignals, PoolSignals, ScalingSignals, Traffic

# Policy time: the seconds of the instances and of `[slo]`, which simulated devices may run faster or slower.
#
# The cluster measures real seconds: polls, process starts, manual holds. Instances measure their own: time worked,
# speed, how long a request has waited relative to the SLO. A policy that receives a mix of both would mistake a quarter
# of the speed for a quarter of the traffic, so all of its inputs are converted here.

ALIVE_PERIODS = 3
"""An autoscaler that has not polled for this many periods plus two seconds is considered dead."""
LEAST_PERIOD_S = 0.5
"""Gateways report twice a second: polling more often returns the same data and loads Serve's controller."""


@dataclass(frozen=True, slots=True)
class PolicyTime:
    """Conversion between real time and the policy's.

    Args:
        scale: policy seconds per real second.
    """

    scale: float

    def of(self, real_s: float) -> float:
        """A duration or timestamp of the cluster's clock, in policy seconds."""
        return real_s * self.scale

    def real_period_s(self, period_s: float) -> float:
        """Real time between two polls [s].

        Args:
            period_s: as configured, in policy seconds.
        Returns: the scaled period, but no less than the smaller of `period_s` and `LEAST_PERIOD_S`.
        """
        return max(period_s / self.scale, min(period_s, LEAST_PERIOD_S))


def autoscaler_row(config: ServeConfig, looked_at: float, now: float) -> dict[str, Any]:
    """Status of the autoscaler for pages.

    Args:
        looked_at: when it last requested signals [s since 1970]; 0 = never.
    """
    period_s = PolicyTime(config.time_scale).real_period_s(config.autoscaler.period_s)
    age = now - looked_at if looked_at else None
    alive = age is not None and age < ALIVE_PERIODS * period_s + 2.0
    return {"policy": config.autoscaler.policy, "alive": alive, "age_s": age, "period_s": period_s}


# Signals for a scaler, computed from the board's snapshots.

KVCACHE = "kvcache"
NOT_THERE = SeenDeployment(0)
INSIDE = ("waiting", "pulling", "fetching", "running")
"""Facts of an instance that count its in-flight sequences; each sequence is in exactly one of them."""


def sizes_of(config: ServeConfig) -> dict[str, ReplicaSize]:
    """Share of its node that one replica of each pool uses."""
    sizes = {
        name: ReplicaSize(p.npus_per_replica, p.ub_memory_per_replica_mib, sum(p.sides))
        for name, p in config.pools.items()
    }
    if config.kvcache.replicas:
        sizes[KVCACHE] = ReplicaSize(0, config.kvcache.ub_memory_mib)
    return sizes


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The KV-cache pool at one poll.

    Args:
        bytes_used, bytes_total: memory tier of all servers.
        looked_up_tokens, hit_tokens, evicted_bytes: totals since the start.
    """

    bytes_used: int = 0
    bytes_total: int = 0
    looked_up_tokens: int = 0
    hit_tokens: int = 0
    evicted_bytes: int = 0


@dataclass(slots=True)
class CacheTotals:
    """Totals since the start: tokens that instances looked up and found in the KV-cache pool, and bytes evicted."""

    _lookups: SourceTotals = field(default_factory=lambda: SourceTotals(2))
    _evicted: SourceTotals = field(default_factory=lambda: SourceTotals(1))

    def observe(self, snapshot: ClusterSnapshot) -> None:
        """Add the counters of one snapshot."""
        block_bytes = 0
        for name, member in snapshot.members.items():
            facts = member.facts
            counters: Mapping[str, int] = (facts.get("pool") or {}).get("counters", {})
            tokens = int(facts.get("block_tokens", 0))
            block_bytes = max(block_bytes, int(facts.get("kv_block_bytes", 0)))
            hits = counters.get("blocks_pulled_dram", 0) + counters.get("blocks_pulled_ssd", 0)
            source = f"{name}/{member.incarnation}"
            self._lookups.update(source, (counters.get("blocks_asked", 0) * tokens, hits * tokens), snapshot.at)
        for server in snapshot.cache.servers if snapshot.cache is not None else ():
            events: Mapping[str, int] = server.record.facts.get("ledger", {}).get("counters", {})
            left = events.get("evicted_dropped", 0) + events.get("evicted_to_ssd", 0)
            if block_bytes:  # else the size of an entry is not known until a later snapshot
                source = f"{server.record.name}/{server.record.incarnation}"
                self._evicted.update(source, (left * block_bytes,), snapshot.at)

    @property
    def looked_up_tokens(self) -> int:
        """Prompt tokens looked up."""
        return int(self._lookups.sums[0])

    @property
    def hit_tokens(self) -> int:
        """Prompt tokens found."""
        return int(self._lookups.sums[1])

    @property
    def evicted_bytes(self) -> int:
        """Bytes evicted for lack of space; each entry counts as one KV block."""
        return int(self._evicted.sums[0])

    def use(self, snapshot: ClusterSnapshot) -> CacheReading:
        """The totals, and the memory used on the servers."""
        used, total = memory_fill(snapshot)
        return CacheReading(used, total, self.looked_up_tokens, self.hit_tokens, self.evicted_bytes)


def scaling_signals(
    config: ServeConfig,
    snapshot: ClusterSnapshot,
    traffic: Traffic,
    abilities: Abilities,
    cache: CacheReading,
    room: NodeRoom,
    held_until: Mapping[str, float],
    time: PolicyTime,
) -> ScalingSignals:
    """One snapshot as a scaler's input, with all times in policy seconds, which are those of the instances.

    Args:
        held_until: end of each manual hold [s since 1970], by pool.
        time: converts the cluster's clock to policy seconds.
    """
    ends = {pool: time.of(at) for pool, at in held_until.items()}
    pools = tuple(_pool(config, name, snapshot, abilities, ends.get(name, 0.0)) for name in config.pools)
    budget = config.autoscaler.npu_budget
    there = sum([node.npus for node in snapshot.nodes])
    # Nodes that Ray may add are known only from the configured budget.
    total = budget if budget and room.grows else min(budget or there, there)
    start_s = abilities.start_s
    if room.grows and not _has_room(config, snapshot, room):
        start_s += room.usual_s
    return ScalingSignals(
        now=time.of(snapshot.at),
        pools=pools,
        cache=_cache(config, snapshot, cache, ends.get(KVCACHE, 0.0)) if config.kvcache.replicas else None,
        traffic=traffic,
        npus_free=max(0, total - room.used(snapshot).npus),
        npus_total=total,
        start_s=time.of(start_s),
    )


def _has_room(config: ServeConfig, snapshot: ClusterSnapshot, room: NodeRoom) -> bool:
    """Whether one more instance of any engine pool fits on the existing nodes."""
    return any(
        room.fits(pool, snapshot) > snapshot.deployments[pool].target
        for pool in config.pools
        if pool in snapshot.deployments
    )


def members_of(sight: ClusterSnapshot, pool: str, *, leaving: bool = False) -> list[SeenMember]:
    """Serving instances of a pool; for a group, its ranks with sequences.

    Args:
        leaving: include draining ones.
    """
    phases = {ReplicaPhase.SERVING, ReplicaPhase.DRAINING} if leaving else {ReplicaPhase.SERVING}
    there = {r.name for r in sight.deployments.get(pool, NOT_THERE).replicas if r.phase in phases}
    of_pool = (one for one in sight.members.values() if one.pool == pool and one.serve_name in there)
    return [one for one in of_pool if one.facts.get("role") != RankRole.EXPERTS.value]


def total(members: list[SeenMember], *facts: str) -> int:
    """Sum of some facts over instances; a fact that an instance does not report counts as 0."""
    return sum([int(member.facts.get(fact) or 0) for member in members for fact in facts])


def memory_fill(snapshot: ClusterSnapshot) -> tuple[int, int]:
    """Bytes used and bytes of capacity in the memory tier of all memory servers."""
    servers = snapshot.cache.servers if snapshot.cache is not None else ()
    ledgers: list[Mapping[str, Any]] = [server.record.facts.get("ledger", {}) for server in servers]
    return (
        sum(ledger.get("dram_used_bytes", 0) for ledger in ledgers),
        sum(ledger.get("dram_capacity_bytes", 0) for ledger in ledgers),
    )


def _pool(
    config: ServeConfig, pool: str, snapshot: ClusterSnapshot, abilities: Abilities, held_until: float
) -> PoolSignals:
    section = config.pools[pool]
    seen = snapshot.deployments.get(pool, NOT_THERE)
    all_there = members = members_of(snapshot, pool, leaving=True)
    if seen.count(ReplicaPhase.DRAINING):
        members = members_of(snapshot, pool)
    low, high = config.autoscaler.bounds(pool)
    # A scaler counts groups: multiply what was measured on one rank by the group's ranks.
    ranks = _ranks(members, section.sides[0]) if section.is_group else 1

    def most_sequences(spread: float) -> float:
        return ranks * abilities.most_sequences(pool, config.slo.tpot_s, section.max_sequences, spread)

    return PoolSignals(
        pool=pool,
        target=seen.target,
        running=seen.count(ReplicaPhase.SERVING),
        starting=seen.starting,
        draining=seen.count(ReplicaPhase.DRAINING),
        npus_per_instance=section.npus_per_replica,
        queued_tokens=total(members, "queued_tokens"),
        waiting=total(members, "waiting"),
        sequences=total(all_there, *INSIDE),
        kv_blocks_used=total(all_there, "kv_blocks_used"),
        kv_blocks_total=total(members, "kv_blocks_total"),
        tokens_per_s=ranks * abilities.tokens_per_s(pool, section.max_step_tokens),
        max_sequences=most_sequences(TPOT_SPREAD),
        low=low,
        high=high,
        crowd=most_sequences(CROWD_SPREAD),
        seats=round(ranks * section.max_sequences),
        held_until=held_until,
    )


def _ranks(members: list[SeenMember], begun: int) -> float:
    """Average number of a group's ranks with sequences, which may change. Lost ranks count, because they are replaced.

    Args:
        begun: initial number of these ranks.
    """
    sizes = {
        one.serve_name: int(one.facts["ranks"]) - int(one.facts.get("expert_ranks", 0))
        for one in members
        if "ranks" in one.facts
    }
    return sum(sizes.values()) / len(sizes) if sizes else begun


def _cache(config: ServeConfig, snapshot: ClusterSnapshot, use: CacheReading, held_until: float) -> CacheSignals:
    seen = snapshot.deployments.get(KVCACHE, NOT_THERE)
    low, high = config.autoscaler.bounds(KVCACHE)
    return CacheSignals(
        target=seen.target,
        running=seen.count(ReplicaPhase.SERVING),
        starting=seen.starting,
        draining=seen.count(ReplicaPhase.DRAINING),
        bytes_used=use.bytes_used,
        bytes_total=use.bytes_total,
        looked_up_tokens=use.looked_up_tokens,
        hit_tokens=use.hit_tokens,
        evicted_bytes=use.evicted_bytes,
        low=low,
        high=high,
        held_until=held_until,
    )
