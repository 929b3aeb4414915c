"""Whether the nodes can hold all replicas, with each replica on one node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from serving.config.cluster import NodeConfig


@dataclass(frozen=True, slots=True)
class Need:
    """Equal replicas of one deployment. A memory server needs no NPUs."""

    name: str
    replicas: int
    npus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class _Room:
    """Free capacity of a node."""

    npus: int
    memory_mib: int

    def holds(self, need: Need) -> int:
        """Number of replicas that fit, at most the requested number."""
        by_npus = self.npus // need.npus if need.npus else need.replicas
        return min(by_npus, self.memory_mib // need.memory_mib, need.replicas)

    def less(self, need: Need, replicas: int) -> "_Room":
        """The remaining capacity after that many replicas."""
        return _Room(self.npus - replicas * need.npus, self.memory_mib - replicas * need.memory_mib)


def can_pack(needs: Sequence[Need], nodes: Sequence[NodeConfig]) -> bool:
    """Whether some placement holds every replica; a sufficient total is not enough.

    Exact. A greedy placement settles most cases. If it fails, all relevant placements are tried: node by node, for
    every number of replicas of all deployments but the last, the most replicas of the last that also fit.
    """
    needs = [need for need in needs if need.replicas]
    if not needs or not _greedy(needs, nodes)[1]:
        return True
    *firsts, last = needs
    wanted = tuple(need.replicas for need in firsts)
    best: dict[tuple[int, ...], int] = {(0,) * len(firsts): 0}
    for node in nodes:
        loads = list(_loads(firsts, last, _Room(node.npus, node.ub_memory_mib)))
        reached: dict[tuple[int, ...], int] = {}
        for (placed, others), (more, beside) in product(best.items(), loads):
            state = tuple(min(have + extra, want) for have, extra, want in zip(placed, more, wanted, strict=True))
            reached[state] = max(reached.get(state, 0), others + beside)
        best = reached
    return best.get(wanted, -1) >= last.replicas


def place(needs: Sequence[Need], nodes: Sequence[NodeConfig]) -> list[NodeConfig]:
    """Place replicas, largest first, each on the first node with enough capacity; those that do not fit are omitted.

    Returns: the nodes with their remaining capacity.
    """
    rooms, _ = _greedy(needs, nodes)
    return [
        replace(node, npus=room.npus, ub_memory_mib=room.memory_mib) for node, room in zip(nodes, rooms, strict=True)
    ]


def _greedy(needs: Sequence[Need], nodes: Sequence[NodeConfig]) -> tuple[list[_Room], int]:
    """Largest first, each on the first node that fits. Returns: the remaining capacity, and the unplaced replicas."""
    rooms = [_Room(node.npus, node.ub_memory_mib) for node in nodes]
    placeless = 0
    for need in sorted(needs, key=lambda need: (need.npus, need.memory_mib), reverse=True):
        left = need.replicas
        for index, room in enumerate(rooms):
            here = min(room.holds(need), left)
            rooms[index] = room.less(need, here)
            left -= here
        placeless += left
    return rooms, placeless


def _loads(firsts: Sequence[Need], last: Need, room: _Room) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every way to load one node: numbers of replicas of `firsts`, and the most of `last` that still fit."""
    if not firsts:
        yield (), room.holds(last)
        return
    for count in range(room.holds(firsts[0]) + 1):
        for rest, most in _loads(firsts[1:], last, room.less(firsts[0], count)):
            yield (count, *rest), most
