"""Signals of an autoscaler in virtual time: computed as live, from the state of a simulated supernode."""

import math
from bisect import bisect_left
from dataclasses import replace
from typing import Any

from msgspec import structs

from hardware.cost.cost_model import mtp_tokens_per_step
from serving.config.cluster import DIES_PER_NPU
from serving.config.serve import ServeConfig
from serving.scaling.core.capacity import TPOT_SPREAD, Abilities
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.decode_parts import in_parts
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.signals import CacheReading, PolicyTime, scaling_signals
from serving.values.signals import PoolSignals, ScalingSignals
from serving.virtual.cluster_snapshot import ClusterReader, with_parts
from serving.virtual.decode_sizes import DecodeSizes
from serving.virtual.ports import StepDurations
from serving.virtual.supernode import Supernode
from serving.virtual.work_done import answers_pool

TYPICAL_PROMPT = 4096.0
"""Prompt length for which capacities are computed [tokens]; the cost model's rows have that length."""
_TIME = PolicyTime(1.0)
"""Polls use the instances' own time, independently of `[simulation] time_scale`."""
FULLEST = 1.2
"""Sequences of the fullest die of a decode instance above the mean, in square roots of the mean. Measured with the
ServeGen R1 day."""


class SignalReader:
    """Signals from one supernode; capacities are measured as in the live system."""

    def __init__(self, node: Supernode) -> None:
        self._node = node
        alone: dict[str, Any] = {name: section.as_one_process() for name, section in node.config.pools.items()}
        self._config = replace(node.config, **alone)
        """The configuration without ranks, because simulated instances are not groups."""
        self._cluster = ClusterReader(node)
        self._abilities = Abilities()
        self._instances = ClusterSnapshot(0.0)
        self._most: dict[int, int] = {}

    def look(self) -> ClusterSnapshot:
        """Snapshot of the cluster now; also runs the due work of memory servers."""
        node = self._node
        if node.pool is not None:
            node.pool.tick(node.queue.now)
        self._instances = self._cluster.read()
        if node.parts is None:
            self._abilities.observe(self._instances)
            return self._instances
        members = dict(self._instances.members)
        for one in node.decodes:
            facts = {**members[one.name].facts, "share_of_capacity": self._share(one.npus)}
            members[one.name] = replace(members[one.name], facts=facts)
        self._instances = replace(self._instances, members=members)
        self._abilities.observe(self._instances)
        return with_parts(self._instances, node.parts)

    def signals(self, fleet: ScalingFleet) -> ScalingSignals:
        """Signals for a scaler from the last snapshot; advances the tally, see `TrafficTally.traffic`."""
        node, snapshot = self._node, fleet.snapshot
        now, book, parts = node.queue.now, node.book, node.parts
        traffic = book.tally.traffic(book.rows, book.tokens_out, [one.waiting() for one in node.gateways], now)
        if parts is not None:
            snapshot = replace(
                snapshot, deployments={**snapshot.deployments, "decode": self._instances.deployments["decode"]}
            )
        told = scaling_signals(self._config, snapshot, traffic, self._abilities, self._cache(), fleet.room, {}, _TIME)
        if parts is None:
            return told
        pools = tuple(self._in_parts(parts, one) if one.pool == "decode" else one for one in told.pools)
        free = max(0, told.npus_total - fleet.room.used(fleet.snapshot).npus)
        return structs.replace(told, pools=pools, npus_free=free)

    def _cache(self) -> CacheReading:
        node, pool = self._node, self._node.pool
        if pool is None:
            return CacheReading()
        tokens, movers = node.config.engine.block_tokens, node.movers
        evicted = pool.counters.evicted * node.block_bytes
        return CacheReading(*pool.memory_bytes, movers.asked_blocks * tokens, movers.found_blocks * tokens, evicted)

    def _in_parts(self, sizes: DecodeSizes, whole: PoolSignals) -> PoolSignals:
        """Signals of the decode pool in parts, if its instances change their size."""
        target, bounds, per_instance = sizes.rules.target, sizes.bounds, whole.npus_per_instance // sizes.step
        low, high = bounds
        count = max(1, whole.running)
        abilities = tuple(whole.max_sequences * count * self._part(sizes, parts / count) for parts in range(high + 1))
        now = min(max(target, low), high)
        crowded = whole.crowd / whole.max_sequences if whole.max_sequences > 0 else 0.0
        return structs.replace(
            in_parts(whole, per_instance, target, sizes.instances(), sizes.step, bounds),
            max_sequences=abilities[now] / now,
            crowd=crowded * abilities[now] / now,
            start_s=sizes.start_s(),
            abilities=abilities,
        )

    def _part(self, sizes: DecodeSizes, parts: float) -> float:
        """Capacity of an instance of `parts` parts relative to one of the configured size; proportional below the
        fewest parts, and interpolated between whole parts.
        """
        fewest = sizes.rules.fewest
        if parts < fewest:
            return parts / fewest * self._share(fewest * sizes.step)
        below = math.floor(parts)
        here, next_ = self._share(below * sizes.step), self._share((below + 1) * sizes.step)
        return here + (parts - below) * (next_ - here)

    def _share(self, npus: int) -> float:
        """Capacity of a decode instance of `npus` NPUs relative to the configured size, by the cost model."""
        config, most = self._node.config, self._most
        configured = answers_pool(config).npus_per_instance
        for count in (npus, configured):
            if count not in most:
                most[count] = most_decoded(config, self._node.times, count)
        return most[npus] / most[configured]


def most_decoded(config: ServeConfig, times: StepDurations, npus: int) -> int:
    """Most sequences of a decode instance within the TPOT SLO by the cost model, limited to its slots."""
    pool = answers_pool(config)
    dies = npus * DIES_PER_NPU
    groups = (dies - config.simulation.expert_dies) // config.simulation.decode_attention_tp
    seats = pool.max_sequences * dies // pool.dies_per_instance
    limit_s = config.slo.tpot_s / TPOT_SPREAD

    def late(sequences: int) -> bool:
        return _token_s(config, times, sequences, groups) > limit_s

    return max(1, bisect_left(range(seats), True, key=lambda count: late(count + 1)))


def _token_s(config: ServeConfig, times: StepDurations, sequences: float, groups: int) -> float:
    """Mean time per token of an instance with `sequences` sequences, determined by its fullest die or group [s]."""
    simulation = config.simulation
    mean = sequences / groups
    fullest = mean + FULLEST * math.sqrt(mean)
    step_s = times.decode(fullest, fullest * TYPICAL_PROMPT, mean, groups)
    return step_s / mtp_tokens_per_step(simulation.drafts, simulation.acceptance)
