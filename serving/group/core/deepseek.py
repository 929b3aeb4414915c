"""DeepSeek's expert-parallelism load balancer (EPLB): replicate the heaviest experts, pack copies of equal weight.

Where experts, slots and ranks divide evenly, the choices equal those of the original. Otherwise groups and copies are
placed where there is room instead of being refused.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from serving.group.core.load import LayerLoad, total
from serving.group.core.packing import RankPacking
from serving.group.core.placement import GroupShape, check_room
from serving.values.expert_map import PARTS, Placement


class GlobalPlacement:
    """Ignores nodes: for decode, where groups are large."""

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """See `PlacementPolicy`; the current placement does not matter."""
        check_room(experts, shape)
        return spread(range(experts), total(load, experts), shape.slots)


@dataclass(frozen=True, slots=True)
class HierarchicalPlacement:
    """Groups of experts stay on one node, so that group-limited routing crosses few: for prefill.

    Args:
        groups: of experts; contiguous and as equal as possible. If they do not fit the nodes, nodes are ignored.
    """

    groups: int

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """See `PlacementPolicy`; the current placement does not matter."""
        check_room(experts, shape)
        loads = total(load, experts)
        groups = [range(one * experts // self.groups, (one + 1) * experts // self.groups) for one in range(self.groups)]
        nodes = sorted({shape.nodes[rank] for rank in shape.ranks()})
        chosen = _groups_of_nodes(groups, loads, nodes, shape)
        if chosen is None:
            return spread(range(experts), loads, shape.slots)
        found: list[tuple[int | None, ...]] = [()] * len(shape.slots)
        for node, own in zip(nodes, chosen, strict=True):
            ranks = [rank for rank, of in enumerate(shape.nodes) if of == node]
            members = [expert for group in own for expert in groups[group]]
            placed = spread(members, loads, [shape.slots[rank] for rank in ranks])
            for rank, held in zip(ranks, placed, strict=True):
                found[rank] = held
        return tuple(found)


def spread(experts: Sequence[int], loads: Sequence[float], slots: Sequence[int]) -> Placement:
    """Placement of copies of some experts on ranks, heaviest first.

    Args:
        experts: not more than there are slots.
        loads: [expert], of all experts of the layer.
        slots: [rank].
    """
    counts = _copies(experts, loads, sum(slots), most=sum(1 for own in slots if own))
    copies = [*experts, *(expert for expert in experts for _ in range(counts[expert] - 1))]
    if len(copies) == len(slots) and all(own == 1 for own in slots):
        return tuple((expert,) for expert in copies)  # as the original: nothing is to be balanced
    packing = RankPacking(slots)
    for expert in sorted(copies, key=lambda one: -loads[one] / counts[one]):
        packing.put(expert, loads[expert] / counts[expert])
    packing.fill(experts, loads, PARTS)
    return packing.placement()


def _copies(experts: Sequence[int], loads: Sequence[float], slots: int, most: int) -> dict[int, int]:
    """Copies of each expert: the one with the most tokens a copy gets the next, until all slots are used.

    Args:
        most: copies of one expert, at most: one a rank; more than sixteen could not be weighted.
    """
    counts = dict.fromkeys(experts, 1)
    heaviest = [(-loads[expert], place, expert) for place, expert in enumerate(experts)]
    heapq.heapify(heaviest)
    left = slots - len(counts)
    while left > 0 and heaviest:
        _, place, expert = heapq.heappop(heaviest)
        if counts[expert] < min(most, PARTS):
            counts[expert] += 1
            left -= 1
            heapq.heappush(heaviest, (-loads[expert] / counts[expert], place, expert))
    return counts


def _groups_of_nodes(
    groups: Sequence[range], loads: Sequence[float], nodes: Sequence[int], shape: GroupShape
) -> list[list[int]] | None:
    """Groups of each node: the heaviest first, to the node with the least load a rank; None if they do not fit."""
    ranks = [sum(1 for rank in shape.ranks() if shape.nodes[rank] == node) for node in nodes]
    room = [sum(slots for slots, of in zip(shape.slots, shape.nodes, strict=True) if of == node) for node in nodes]
    most = -(-len(groups) // len(nodes))
    weights = [sum(loads[expert] for expert in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda group: -weights[group])
    if len(groups) == len(nodes):
        order = list(range(len(groups)))
    chosen: list[list[int]] = [[] for _ in nodes]
    heavy = [0.0] * len(nodes)
    for group in order:
        size = len(groups[group])
        fine = [node for node in range(len(nodes)) if len(chosen[node]) < most and room[node] >= size]
        if not fine:
            return None
        node = group if most == 1 and group in fine else min(fine, key=lambda one: heavy[one] / ranks[one])
        chosen[node].append(group)
        heavy[node] += weights[group]
        room[node] -= size
    return chosen
