"""xDeepServe's placement: first homes stay, and redundant slots get experts that are the hottest in some time slice.

The work of a layer is the sum over time slices of the hottest expert's tokens. Averages hide an expert that is hot for
a while; slices do not.
"""

from collections.abc import Sequence

from serving.group.core.load import LayerLoad, total
from serving.group.core.packing import RankPacking
from serving.group.core.placement import GroupShape, check_room, numbered
from serving.values.expert_map import PARTS, Placement


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
