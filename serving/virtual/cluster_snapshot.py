"""Snapshot of the cluster in virtual time for the scaling rules: hosts, pools, and the instances' reports.

An instance belongs to the host of its first NPU, and is lost with that host. Its NPUs may be anywhere on the UB fabric.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardware.cost.cost_model import mtp_tokens_per_step
from serving.ids import NodeId, ReplicaId
from serving.scaling.core.cluster_snapshot import (
    ClusterSnapshot,
    ReplicaPhase,
    SeenDeployment,
    SeenMember,
    SeenNode,
    SeenReplica,
)
from serving.scaling.core.decode_parts import as_replicas
from serving.scaling.core.replica_room import ReplicaSize
from serving.scaling.core.signals import KVCACHE
from serving.virtual.decode import DecodeInstance
from serving.virtual.decode_sizes import DecodeSizes
from serving.virtual.prefill import PrefillInstance
from serving.virtual.supernode import Supernode

_NO_HOST = NodeId("no host")
"""Host of replicas without a particular host: starting instances, memory servers, parts."""


def virtual_sizes(node: Supernode) -> dict[str, ReplicaSize]:
    """Share of the supernode that one replica of each pool uses; for decode instances of changing size, of one part.

    Engine pools use almost no UB memory (1 MiB), so that memory servers can use all of it.
    """
    config = node.config
    sizes = {pool: ReplicaSize(section.npus_per_instance, 1) for pool, section in config.pools.items()}
    if node.parts is not None:
        sizes["decode"] = ReplicaSize(node.parts.step, 1)
    if config.kvcache.replicas:
        sizes[KVCACHE] = ReplicaSize(0, config.kvcache.ub_memory_mib)
    return sizes


class ClusterReader:
    """Snapshots of one supernode."""

    def __init__(self, node: Supernode) -> None:
        self._node = node
        self._hosts: tuple[SeenNode, ...] = ()
        self._hosts_of: Mapping[int, int] | None = None
        self._replicas: dict[tuple[ReplicaId, bool], SeenReplica] = {}
        """Replicas of the last poll, by name and whether they drain."""
        simulation = node.config.simulation
        tokens = mtp_tokens_per_step(simulation.drafts, simulation.acceptance)
        self._tokens_per_fed = tokens / (1 + simulation.drafts)
        self._memory_mib = sum(one.ub_memory_mib for one in node.config.cluster.nodes)

    def read(self) -> ClusterSnapshot:
        """Snapshot of the cluster now, in which decode instances of changing size are instances, not parts."""
        node, before = self._node, self._replicas
        self._replicas = {}
        pools = {pool: self._pool(pool, before) for pool in node.config.pools}
        if node.pool is not None and node.memory_sizes is not None:
            servers = [
                SeenReplica(name, ReplicaPhase.SERVING, _NO_HOST, None, float(since))
                for since, name in enumerate(map(str, node.pool.active()))
            ]
            count = len(node.pool.servers()) - len(node.pool.active())
            leaving = [_nowhere(f"leaving {n}", ReplicaPhase.DRAINING) for n in range(count)]
            pools[KVCACHE] = SeenDeployment(node.memory_sizes.target, (*servers, *leaving))
        members: dict[str, SeenMember] = {one.name: self._member(one) for one in node.everyone}
        return ClusterSnapshot(node.queue.now, pools, self._nodes(), members)

    def _pool(self, pool: str, before: Mapping[tuple[ReplicaId, bool], SeenReplica]) -> SeenDeployment:
        node = self._node
        here = []
        for one in node.instances(pool):
            key = one.name, one.draining
            replica = self._replicas[key] = before.get(key) or self._replica(one)
            here.append(replica)
        starting = [
            _nowhere(f"{pool}-{node.serials[pool] + number}", ReplicaPhase.STARTING)  # the names that they will have
            for number in range(node.sizes.starting(pool))
        ]
        return SeenDeployment(node.sizes.targets[pool], (*here, *starting))

    def _replica(self, one: PrefillInstance | DecodeInstance) -> SeenReplica:
        node = self._node
        phase = ReplicaPhase.DRAINING if one.draining else ReplicaPhase.SERVING
        npus = Counter(_host(npu.node) for npu in node.places[one.name])
        spans = tuple(npus.items()) if len(npus) > 1 else ()
        return SeenReplica(one.name, phase, next(iter(npus)), None, node.started_s[one.name], spans=spans)

    def _nodes(self) -> tuple[SeenNode, ...]:
        npus = self._node.placement.by_host
        if npus is not self._hosts_of:
            each_mib = self._memory_mib // max(1, len(npus))
            self._hosts_of = npus
            self._hosts = tuple(SeenNode(_host(host), count, each_mib, host) for host, count in npus.items())
        return self._hosts

    def _member(self, one: PrefillInstance | DecodeInstance) -> SeenMember:
        done, waiting, inside = one.done(), one.waiting(), one.sequences
        generated, running = float(one.meter.output_tokens), inside - waiting
        if isinstance(one, DecodeInstance):  # its meter counts tokens when a stretch of steps is over
            generated = (done.forward_tokens - done.prompt_tokens) * self._tokens_per_fed
            running = min(running, one.batch)
        facts: dict[str, Any] = {
            "prompt_tokens_total": done.prompt_tokens,
            "generated_tokens_total": generated,
            "busy_s": done.busy_s,
            "steps_total": one.meter.steps,
            "queued_tokens": one.status()[0],
            "waiting": waiting,
            "pulling": inside - waiting - running,
            "running": running,
            "kv_blocks_used": one.kv_used(),
            "kv_blocks_total": one.kv_blocks,
        }
        return SeenMember(one.name, one.pool, "1", facts)


def with_parts(snapshot: ClusterSnapshot, sizes: DecodeSizes) -> ClusterSnapshot:
    """The snapshot with each part of a decode instance as a replica."""
    parts = as_replicas(sizes.rules.target, sizes.instances())
    return replace(snapshot, deployments={**snapshot.deployments, "decode": parts})


def _host(number: int) -> NodeId:
    return NodeId(f"n{number}")


def _nowhere(name: str, phase: ReplicaPhase) -> SeenReplica:
    return SeenReplica(name, phase, _NO_HOST, None)
