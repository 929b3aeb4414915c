"""Number of replicas of a pool that fit, and what one more would lack.

Each replica is on one node, and running replicas stay where they are. Draining replicas do not count: a target is the
number of replicas after they have ended.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from serving.config.cluster import NodeConfig
from serving.config.packing import Need, can_pack, place
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ReplicaPhase, SeenDeployment, SeenNode, SeenReplica
from serving.values.scaling_operations import MOST_REPLICAS


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """Share of its node that one replica uses.

    Args:
        ranks: initial number of ranks of a group; 1 = not a group.
    """

    npus: int
    memory_mib: int
    ranks: int = 1

    def of(self, replica: SeenReplica) -> "ReplicaSize":
        """Share that a replica uses now: a grown group uses more, a shrunk one keeps its initial share."""
        if replica.ranks <= self.ranks:
            return self
        return ReplicaSize(
            self.npus * replica.ranks // self.ranks, self.memory_mib * replica.ranks // self.ranks, replica.ranks
        )


def fits(
    pool: str, sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]
) -> int:
    """The largest target of a pool that fits, with all other targets unchanged.

    Args:
        sizes: of all pools, by name.
    Returns: at least the replicas of the target that are already placed, so that running replicas always fit.
    """
    placed = _all_placed(deployments, nodes)
    free = _free(sizes, placed, nodes)
    waiting = _waiting(pool, sizes, placed, deployments)
    low, size = len(placed[pool]), sizes[pool]
    base, high = low, low + sum(_most_on(size, node) for node in free)
    while low < high:  # more replicas never fit better
        middle = (low + high + 1) // 2
        own = Need(pool, middle - base, size.npus, size.memory_mib)
        if can_pack([*waiting, own], free):
            low = middle
        else:
            high = middle - 1
    return min(MOST_REPLICAS, low)


def hosts_with_room(
    pool: str, sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]
) -> set[NodeId]:
    """Hosts with capacity for one more replica of a pool."""
    return {node for node, more in room_by_node(pool, sizes, deployments, nodes).items() if more}


def room_by_node(
    pool: str, sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]
) -> dict[NodeId, int]:
    """Number of further replicas of a pool that fit on each node."""
    free = _free(sizes, _all_placed(deployments, nodes), nodes)
    return {node.node: _most_on(sizes[pool], left) for node, left in zip(nodes, free, strict=True)}


def shortage(
    pool: str, sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]
) -> str:
    """Why one replica more than `fits` returns cannot be placed: what it needs, and what would be free.

    Returns: for example "an instance needs 4 NPUs whole on one node, 2 are free".
    """
    most = fits(pool, sizes, deployments, nodes)
    if most >= MOST_REPLICAS:
        return f"{MOST_REPLICAS} are the most of any pool"
    placed, size = _all_placed(deployments, nodes), sizes[pool]
    coming = Need(pool, most - len(placed[pool]), size.npus, size.memory_mib)
    waiting = _waiting(pool, sizes, placed, deployments)
    free = place([coming, *waiting], _free(sizes, placed, nodes))
    needed, left = _needed_and_left(size, free)
    who = "an instance" if size.npus else "a memory server"
    then = " then" if coming.replicas else ""
    others = sum(need.replicas for need in waiting)
    beside = f" beside {others} replica{'s' * (others != 1)} still to be placed" if others else ""
    return f"{who} needs {needed} whole on one node, {left}{then}{beside}"


def _needed_and_left(size: ReplicaSize, free: Sequence[NodeConfig]) -> tuple[str, str]:
    """A replica's needs and what is free on the nodes, as text; only of NPUs or memory if only that is short."""
    npus, memory = [node.npus for node in free], [node.ub_memory_mib for node in free]
    lacks_npus, lacks_memory = max(npus, default=0) < size.npus, max(memory, default=0) < size.memory_mib
    if lacks_npus and not lacks_memory:
        return _npus(size.npus), _most(npus, "")
    if not size.npus or (lacks_memory and not lacks_npus):
        return f"{size.memory_mib} MiB of UB memory", _most(memory, " MiB")
    widest = max(free, key=lambda node: (node.npus, node.ub_memory_mib), default=NodeConfig(npus=0, ub_memory_mib=0))
    where = " on the one with most" if len(free) > 1 else ""
    return (
        f"{_npus(size.npus)} and {size.memory_mib} MiB of UB memory",
        f"{_npus(widest.npus)} and {widest.ub_memory_mib} MiB are free{where}",
    )


def _most(free: Sequence[int], unit: str) -> str:
    most = max(free, default=0)
    verb = "is" if most == 1 and not unit else "are"
    return f"at most {most}{unit} {verb} free on any" if len(free) > 1 else f"{most}{unit} {verb} free"


def _npus(count: int) -> str:
    return f"{count} NPU{'s' * (count != 1)}"


def as_one_node(
    deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]
) -> tuple[dict[str, SeenDeployment], tuple[SeenNode, ...]]:
    """The same cluster with all nodes merged into one, for replicas whose NPUs may be on several nodes."""
    whole = offered(nodes)
    one = SeenNode(NodeId("all nodes"), whole.npus, whole.memory_mib)

    def moved(replica: SeenReplica) -> SeenReplica:
        return replica if replica.node is None else replace(replica, node=one.node, spans=())

    there = {name: replace(seen, replicas=tuple(map(moved, seen.replicas))) for name, seen in deployments.items()}
    return there, (one,)


def used(sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment]) -> ReplicaSize:
    """NPUs and UB memory held by replicas, draining ones included."""
    taken = [
        sizes[name].of(replica)
        for name, seen in deployments.items()
        if name in sizes
        for replica in seen.replicas
        if replica.node is not None
    ]
    return ReplicaSize(sum(one.npus for one in taken), sum(one.memory_mib for one in taken))


def offered(nodes: Sequence[SeenNode]) -> ReplicaSize:
    """NPUs and UB memory of all live nodes."""
    return ReplicaSize(sum(node.npus for node in nodes), sum(node.memory_mib for node in nodes))


def _all_placed(deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]) -> dict[str, list[SeenReplica]]:
    alive = {node.node for node in nodes}
    return {name: _placed(seen, alive) for name, seen in deployments.items()}


def _waiting(
    pool: str,
    sizes: Mapping[str, ReplicaSize],
    placed: Mapping[str, Sequence[SeenReplica]],
    deployments: Mapping[str, SeenDeployment],
) -> list[Need]:
    """Requested replicas of all other pools that are not placed yet."""
    return [
        Need(name, seen.target - len(placed[name]), sizes[name].npus, sizes[name].memory_mib)
        for name, seen in deployments.items()
        if name != pool and name in sizes
    ]


def _placed(seen: SeenDeployment, alive: Collection[NodeId]) -> list[SeenReplica]:
    """Replicas that stay where they are; of a shrinking pool the first ones, because Serve has not selected any yet.

    A replica on a lost node must be placed again, like one that was never placed.
    """
    there = [r for r in seen.replicas if r.node in alive and r.phase is not ReplicaPhase.DRAINING]
    return there[: seen.target]


def _free(
    sizes: Mapping[str, ReplicaSize], placed: Mapping[str, Sequence[SeenReplica]], nodes: Sequence[SeenNode]
) -> list[NodeConfig]:
    left = {node.node: [node.npus, node.memory_mib] for node in nodes}
    for name, there in placed.items():
        for replica in there:
            if name in sizes and replica.node is not None:
                taken = sizes[name].of(replica)
                left[replica.node][1] -= taken.memory_mib
                for node, npus in replica.spans or ((replica.node, taken.npus),):
                    if node in left:  # else the node is lost
                        left[node][0] -= npus
    return [NodeConfig(npus=max(0, npus), ub_memory_mib=max(0, memory)) for npus, memory in left.values()]


def _most_on(size: ReplicaSize, node: NodeConfig) -> int:
    by_npus = node.npus // size.npus if size.npus else MOST_REPLICAS
    return min(by_npus, node.ub_memory_mib // size.memory_mib)
