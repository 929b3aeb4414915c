"""How many replicas of a pool fit: each lies whole on one node, and what runs already stays where it is.

Replicas that leave do not count: a target says what shall be once they have gone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from serving.config.cluster import NodeConfig
from serving.config.packing import Need, can_pack
from serving.ids import NodeId
from serving.scaling.live.sight import ReplicaPhase, SeenDeployment, SeenNode
from serving.values.scaling import MOST_REPLICAS


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """Share of its node that one replica takes."""

    npus: int
    memory_mib: int


def fits(
    pool: str, sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment], nodes: Sequence[SeenNode]
) -> int:
    """The largest target of a pool for which there is room, with all other targets as they are.

    Args:
        sizes: of all pools, by name.
    Returns: at least what of the target has its place already, so that what runs is never too much.
    Effects: none.
    """
    placed = {name: _placed(seen, {node.node for node in nodes}) for name, seen in deployments.items()}
    free = _free(sizes, placed, nodes)
    waiting = [
        Need(name, seen.target - len(placed[name]), sizes[name].npus, sizes[name].memory_mib)
        for name, seen in deployments.items()
        if name != pool and name in sizes
    ]
    low, size = len(placed[pool]), sizes[pool]
    base, high = low, low + sum(_most(size, node) for node in free)
    while low < high:  # more replicas never fit better
        middle = (low + high + 1) // 2
        own = Need(pool, middle - base, size.npus, size.memory_mib)
        if can_pack([*waiting, own], free):
            low = middle
        else:
            high = middle - 1
    return min(MOST_REPLICAS, low)


def used(sizes: Mapping[str, ReplicaSize], deployments: Mapping[str, SeenDeployment]) -> ReplicaSize:
    """NPUs and UB memory that somebody has, replicas that leave included."""
    taken = [
        (sizes[name], sum(replica.node is not None for replica in seen.replicas))
        for name, seen in deployments.items()
        if name in sizes
    ]
    return ReplicaSize(sum(s.npus * n for s, n in taken), sum(s.memory_mib * n for s, n in taken))


def offered(nodes: Sequence[SeenNode]) -> ReplicaSize:
    """NPUs and UB memory of all living nodes."""
    return ReplicaSize(sum(node.npus for node in nodes), sum(node.memory_mib for node in nodes))


def _placed(seen: SeenDeployment, alive: Collection[NodeId]) -> list[NodeId]:
    """Nodes of the replicas that stay. Of a pool that shrinks nobody knows yet which these are: the first ones.

    A replica whose node is gone needs another place, as one that was never placed.
    """
    there = [r.node for r in seen.replicas if r.node in alive and r.phase is not ReplicaPhase.DRAINING]
    return [node for node in there if node is not None][: seen.target]


def _free(
    sizes: Mapping[str, ReplicaSize], placed: Mapping[str, Sequence[NodeId]], nodes: Sequence[SeenNode]
) -> list[NodeConfig]:
    left = {node.node: [node.npus, node.memory_mib] for node in nodes}
    for name, there in placed.items():
        for node in there:
            if name in sizes:
                left[node][0] -= sizes[name].npus
                left[node][1] -= sizes[name].memory_mib
    return [NodeConfig(npus=max(0, npus), ub_memory_mib=max(0, memory)) for npus, memory in left.values()]


def _most(size: ReplicaSize, node: NodeConfig) -> int:
    by_npus = node.npus // size.npus if size.npus else MOST_REPLICAS
    return min(by_npus, node.ub_memory_mib // size.memory_mib)
