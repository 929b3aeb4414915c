"""The cluster in virtual time as the rules of scaling see it: pools, their instances, and where they are.

For room a supernode is one place: its NPUs may be anywhere on the UB fabric. For who leaves, an instance is on the host
of its first NPU: with that host it is lost.
"""

from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment, SeenNode, SeenReplica
from serving.scaling.core.decode_parts import as_replicas
from serving.scaling.core.replica_room import ReplicaSize
from serving.scaling.core.signals import KVCACHE
from serving.virtual.decode_sizes import SUPERNODE
from serving.virtual.supernode import Supernode


def virtual_sizes(node: Supernode) -> dict[str, ReplicaSize]:
    """Share of the supernode that one replica of each pool takes; decode instances of changing size count by parts.

    UB memory is that of memory servers only: engine pools take next to none of it here.
    """
    config = node.config
    sizes = {pool: ReplicaSize(section.npus_per_instance, 1) for pool, section in config.pools.items()}
    if node.parts is not None:
        sizes["decode"] = ReplicaSize(node.parts.step, 1)
    if config.kvcache.replicas:
        sizes[KVCACHE] = ReplicaSize(0, config.kvcache.ub_memory_mib)
    return sizes


def room_sight(node: Supernode) -> ClusterSnapshot:
    """Snapshot by which room is judged."""
    pools = {pool: _pool(node, pool, hosts=False) for pool in node.config.pools}
    if node.parts is not None:
        pools["decode"] = as_replicas(node.parts.rules.target, node.parts.instances())
    if node.pool is not None and node.memory_sizes is not None:
        servers = tuple(_at(str(name), ReplicaPhase.SERVING) for name in node.pool.active())
        pools[KVCACHE] = SeenDeployment(node.memory_sizes.target, servers)
    memory_mib = sum(one.ub_memory_mib for one in node.config.cluster.nodes)
    return ClusterSnapshot(node.queue.now, pools, (SeenNode(SUPERNODE, node.placement.total, memory_mib),))


def host_sight(node: Supernode) -> ClusterSnapshot:
    """Snapshot by which leavers are chosen."""
    pools = {pool: _pool(node, pool, hosts=True) for pool in node.config.pools}
    numbers = sorted({npu.node for npu in node.placement.npus})
    hosts = tuple(SeenNode(NodeId(f"n{number}"), 0, 0, number) for number in numbers)
    return ClusterSnapshot(node.queue.now, pools, hosts)


def _pool(node: Supernode, pool: str, *, hosts: bool) -> SeenDeployment:
    replicas = [
        SeenReplica(
            one.name,
            ReplicaPhase.DRAINING if one.draining else ReplicaPhase.SERVING,
            NodeId(f"n{node.places[one.name][0].node}") if hosts else SUPERNODE,
            None,
            node.started_s[one.name],
        )
        for one in node.instances(pool)
    ]
    starting = [_at(f"{pool} starting {n}", ReplicaPhase.STARTING) for n in range(node.sizes.starting(pool))]
    return SeenDeployment(node.sizes.targets[pool], (*replicas, *([] if hosts else starting)))


def _at(name: str, phase: ReplicaPhase) -> SeenReplica:
    return SeenReplica(name, phase, SUPERNODE, None)
