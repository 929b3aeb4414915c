"""Placement policies of experts, by the names that `[experts] policy` gives them, and a trial of them on a trace."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from serving.errors import PlacementError
from serving.group.core.expert_load import LayerLoad, total
from serving.group.core.placement import (
    GroupShape,
    PlacementPolicy,
    RankPacking,
    StaticPlacement,
    balancedness,
    check_room,
    numbered,
    rank_loads,
    split,
)
from serving.values.expert_map import PARTS, Placement

# Placement policies by the names that `[experts] policy` and `--policy` give them.

NONE = "none"
"""Experts move only when an operator says so."""


def policy_of(name: str, groups: int = 1) -> PlacementPolicy | None:
    """The policy of that name; None if there is none.

    Args:
        groups: of experts, as the model's router has them.
    """
    match name:
        case "static":
            return StaticPlacement()
        case "global":
            return GlobalPlacement()
        case "hierarchical":
            return HierarchicalPlacement(groups)
        case "time_sliced":
            return TimeSlicedPlacement()
        case _:
            return None


# DeepSeek's expert-parallelism load balancer (EPLB): replicate the heaviest experts, pack copies of equal weight.
#
# Where experts, slots and ranks divide evenly, the choices equal those of the original. Otherwise groups and copies are
# placed where there is room instead of being refused.


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


# xDeepServe's placement: first homes stay, and redundant slots get experts that are the hottest in some time slice.
#
# The work of a layer is the sum over time slices of the hottest expert's tokens. Averages hide an expert that is hot
# for a while; slices do not.


class TimeSlicedPlacement:
    """Keeps one home of each expert in place and reassigns the other slots."""

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """See `PlacementPolicy`."""
        check_room(experts, shape)
        most = min(len(shape.ranks()), PARTS)
        extra = choose_copies(load, experts, sum(shape.slots) - experts, most)
        loads = total(load, experts)
        counts = [1 + extra.count(expert) for expert in range(experts)]
        packing = RankPacking(shape.slots)
        homeless = []
        for expert, rank in enumerate(first_homes(experts, shape, current)):
            if rank is None:
                homeless.append(expert)
            else:
                packing.fix(rank, expert, loads[expert] / counts[expert])
        for expert in (*homeless, *sorted(extra, key=lambda one: -loads[one] / counts[one])):
            packing.put(expert, loads[expert] / counts[expert])
        packing.fill(range(experts), loads, PARTS)
        return packing.placement()


def choose_copies(load: LayerLoad, experts: int, copies: int, most: int) -> list[int]:
    """Experts that get another copy, in the order of choice; an expert may occur several times.

    Each choice is, of the experts that are the hottest in some slice, the one whose copy lowers the sum of peaks most.

    Args:
        copies: number to choose; fewer are returned once every expert has `most`.
    Source: xDeepServe 4.5; candidates and objective as there, ties to the lower number.
    """
    slices = [list(map(float, row)) for row in load] or [[0.0] * experts]
    heat = [list(row) for row in slices]
    sums = [sum(row[expert] for row in heat) for expert in range(experts)]
    counts, chosen = [1] * experts, []
    for _ in range(copies):
        tops, seconds = _peaks(heat)
        open_tops = sorted({top for top in tops if counts[top] < most})
        if open_tops:
            best = min(open_tops, key=lambda one: (_sum_of_peaks(one, counts, slices, heat, tops, seconds), one))
        else:
            rest = [expert for expert in range(experts) if counts[expert] < most]
            if not rest:
                break
            best = max(rest, key=lambda one: (sums[one], -one))
        counts[best] += 1
        chosen.append(best)
        for row, own in zip(slices, heat, strict=True):
            own[best] = row[best] / counts[best]
        sums[best] = sum(row[best] for row in heat)
    return chosen


def first_homes(experts: int, shape: GroupShape, current: Placement | None) -> list[int | None]:
    """Rank of each expert's first home: the rank by number if it holds the expert, else the one with the fewest.

    Returns: None for an absent expert.
    """
    expected = {expert: rank for rank, held in enumerate(numbered(experts, shape)) for expert in held}
    if current is None:
        return [expected[expert] for expert in range(experts)]
    ranks: list[list[int]] = [[] for _ in range(experts)]
    for rank, held in enumerate(current[: len(shape.slots)]):
        for expert in held if shape.slots[rank] else ():
            if expert is not None:
                ranks[expert].append(rank)
    found: list[int | None] = [expected[one] if expected[one] in ranks[one] else None for one in range(experts)]
    for expert in range(experts):
        free = [rank for rank in ranks[expert] if found.count(rank) < shape.slots[rank]]
        if found[expert] is None and free:
            found[expert] = min(free, key=lambda rank: (found.count(rank), rank))
    return found


def _peaks(heat: Sequence[list[float]]) -> tuple[list[int], list[float]]:
    """The hottest expert of each slice, and the heat of the next one."""
    tops, seconds = [], []
    for row in heat:
        top = row.index(max(row))
        heat_of_top, row[top] = row[top], -1.0
        tops.append(top)
        seconds.append(max(row))
        row[top] = heat_of_top
    return tops, seconds


def _sum_of_peaks(
    expert: int,
    counts: Sequence[int],
    slices: Sequence[Sequence[float]],
    heat: Sequence[Sequence[float]],
    tops: Sequence[int],
    seconds: Sequence[float],
) -> float:
    """Sum over slices of the hottest expert's heat with one more copy of an expert."""
    return sum(
        max(second, row[expert] / (counts[expert] + 1)) if top == expert else own[top]
        for row, own, top, second in zip(slices, heat, tops, seconds, strict=True)
    )


# Trial of placement policies on a routing trace: planned on every other slice, judged on the rest.

TRIED = ("static", "time_sliced", "global", "hierarchical")


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """Result of one policy.

    Args:
        balancedness: mean over largest of the ranks' rows, by layer; 1 = even. Its reciprocal is what the cost model
            calls imbalance.
    """

    policy: str
    balancedness: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of all layers."""
        return fmean(self.balancedness)

    @property
    def worst(self) -> float:
        """Balancedness of the worst layer."""
        return min(self.balancedness)


def try_policies(loads: Sequence[LayerLoad], ranks: int, redundant: int, groups: int = 1) -> list[PolicyTrial]:
    """Balancedness of all policies for a group of such a size.

    Args:
        loads: [layer][slice][expert].
        redundant: expert slots of a rank in addition to its share.
        groups: of experts in the model's router.
    Raises: PlacementError without load, or for a group that cannot be.
    """
    if not loads or len(loads[0]) < 2:
        raise PlacementError("at least two slices with rows are needed: one to plan on, and one to judge by")
    experts = len(loads[0][0])
    if not 1 <= ranks <= experts * (redundant + 1):
        raise PlacementError(f"{ranks} ranks for {experts} experts of a layer")
    slots = -(-experts // ranks) + redundant
    shape = GroupShape((slots,) * ranks, (0,) * ranks)
    busy = [load for load in loads if any(map(sum, load))]
    if not busy:
        raise PlacementError("the trace has no rows")
    return [PolicyTrial(name, tuple(_one(name, load, experts, shape, groups) for load in busy)) for name in TRIED]


def _one(name: str, load: LayerLoad, experts: int, shape: GroupShape, groups: int) -> float:
    ranks = len(shape.slots)
    first = StaticPlacement().place(load, experts, shape)
    policy = policy_of(name, groups) or StaticPlacement()
    placed = policy.place(load[::2], experts, shape, first)
    return balancedness(rank_loads(split(placed, total(load[::2], experts)), total(load[1::2], experts), ranks))
