"""Port of placement policies, and the policy that places experts as they are numbered."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.errors import PlacementError
from serving.group.core.expert_load import LayerLoad
from serving.values.expert_map import PARTS, ExpertHome, ExpertSlot, LayerMap, Placement


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Room of a group.

    Args:
        slots: [rank] slots a layer; 0 = takes no experts.
        nodes: [rank] its node.
    """

    slots: tuple[int, ...]
    nodes: tuple[int, ...]

    def ranks(self) -> list[int]:
        """Ranks that take experts."""
        return [rank for rank, slots in enumerate(self.slots) if slots]


class PlacementPolicy(Protocol):
    """Chooses the contents of the slots of one layer.

    Every expert gets a slot, and at most one on each rank: a second copy there would get no tokens, so surplus slots
    remain empty. Numbers of experts, slots and ranks are arbitrary.
    """

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """Placement of one layer.

        Args:
            load: [slice][expert] tokens to plan for; may be empty.
            current: present contents of slots; a policy may stay close to them.
        Raises: PlacementError if the group has fewer slots than experts.
        """
        ...


class StaticPlacement:
    """Experts by number, in equal runs; redundant slots stay empty."""

    def place(self, load: LayerLoad, experts: int, shape: GroupShape, current: Placement | None = None) -> Placement:
        """See `PlacementPolicy`; ignores load and current placement."""
        return numbered(experts, shape)


def numbered(experts: int, shape: GroupShape) -> Placement:
    """Experts in runs that are as equal as the ranks' slots allow, the first ones longer.

    Raises: PlacementError.
    """
    check_room(experts, shape)
    sizes = [0] * len(shape.slots)
    for _ in range(experts):
        free = [rank for rank in shape.ranks() if sizes[rank] < shape.slots[rank]]
        sizes[min(free, key=lambda rank: (sizes[rank], rank))] += 1
    found: list[tuple[int | None, ...]] = []
    first = 0
    for size, slots in zip(sizes, shape.slots, strict=True):
        found.append((*range(first, first + size), *[None] * (slots - size)))
        first += size
    return tuple(found)


def check_room(experts: int, shape: GroupShape) -> None:
    """Refuse a group that cannot hold every expert once.

    Raises: PlacementError.
    """
    if sum(shape.slots) < experts:
        raise PlacementError(
            f"{experts} experts need as many slots, but the group has {sum(shape.slots)}; add ranks or redundant slots"
        )


# Greedy packing of copies of experts: each is assigned to the least loaded rank with room that lacks the expert.


class RankPacking:
    """Ranks that are being filled.

    Args:
        slots: [rank] number of copies it takes.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._slots = slots
        self._held: list[dict[int, float]] = [{} for _ in slots]  # [rank] expert -> load of this copy, in order
        self._fixed: set[tuple[int, int]] = set()  # (rank, expert) that must stay
        self._loads = [0.0] * len(slots)

    def fix(self, rank: int, expert: int, load: float) -> None:
        """Assign a copy to a rank permanently; later choices count its load."""
        self._lay(rank, expert, load)
        self._fixed.add((rank, expert))

    def put(self, expert: int, load: float) -> bool:
        """Assign a copy to the best rank. False if it does not fit: each rank with room holds this expert."""
        free = [rank for rank, slots in enumerate(self._slots) if len(self._held[rank]) < slots]
        fine = [rank for rank in free if expert not in self._held[rank]]
        if fine:
            self._lay(min(fine, key=self._loads.__getitem__), expert, load)
            return True
        return self._swap(free, expert, load)

    def fill(self, experts: Sequence[int], loads: Sequence[float], most: int) -> None:
        """Fill free slots, each with the expert that has the most tokens per copy and is missing on the rank.

        Args:
            most: copies of one expert at most.
        """
        copies = Counter(expert for held in self._held for expert in held)
        for rank, slots in enumerate(self._slots):
            while len(self._held[rank]) < slots:
                able = [one for one in experts if one not in self._held[rank] and copies[one] < most]
                if not able:
                    break
                best = max(able, key=lambda one: (loads[one] / max(copies[one], 1), -one))
                copies[best] += 1
                self._lay(rank, best, loads[best] / copies[best])

    def placement(self) -> Placement:
        """Copies assigned so far, in order of assignment in each rank."""
        return tuple(
            (*held, *[None] * (slots - len(held))) for held, slots in zip(self._held, self._slots, strict=True)
        )

    def _swap(self, free: Sequence[int], expert: int, load: float) -> bool:
        """Make room on a full rank by moving one of its copies to a rank with room, at the least peak of the two."""
        best: tuple[float, int, int, int] | None = None
        for full in range(len(self._slots)):
            if expert in self._held[full] or not self._slots[full]:
                continue
            for other, its_load in self._held[full].items():
                for rank in free:
                    if other not in self._held[rank] and (full, other) not in self._fixed:
                        peak = max(self._loads[full] - its_load + load, self._loads[rank] + its_load)
                        best = min(best or (peak, full, other, rank), (peak, full, other, rank))
        if best is None:
            return False
        _, full, other, rank = best
        moved = self._held[full].pop(other)
        self._loads[full] -= moved
        self._lay(rank, other, moved)
        self._lay(full, expert, load)
        return True

    def _lay(self, rank: int, expert: int, load: float) -> None:
        self._held[rank][expert] = load
        self._loads[rank] += load


# Weights of replicas by water-filling: each sixteenth of an expert's tokens goes to its least loaded home.
#
# An even split ignores the other load of a rank. It can make a balanced layer worse than without replicas.

MAX_ROUNDS = 16
"""Every round only improves; random layers of up to 256 experts settle within 10."""


def split(placement: Placement, loads: Sequence[float], speeds: Sequence[float] | None = None) -> LayerMap:
    """Map of one layer with the weights that keep the busiest rank's time low.

    Args:
        placement: contents of slots; absent experts are masked, a second copy on a rank is not used.
        loads: [expert] tokens.
        speeds: [rank] relative speed, above 0; equal by default. A rank half as fast gets half as many split tokens.
    """
    places: list[list[ExpertSlot]] = [[] for _ in loads]
    for rank, held in enumerate(placement):
        for slot, expert in enumerate(held):
            if expert is not None and expert not in held[:slot]:
                places[expert].append(ExpertSlot(rank, slot))
    weights = _fill(places, loads, speeds or [1.0] * len(placement))
    homes = tuple(
        tuple(ExpertHome(at, weight) for at, weight in zip(own, shares, strict=True))
        for own, shares in zip(places, weights, strict=True)
    )
    return LayerMap(homes, frozenset(expert for expert, own in enumerate(places) if not own))


def rank_loads(layer: LayerMap, loads: Sequence[float], ranks: int) -> list[float]:
    """Tokens that each rank gets under a map, without those of masked experts: the gate chooses others."""
    found = [0.0] * ranks
    for homes, load in zip(layer.homes, loads, strict=True):
        for home in homes:
            found[home.at.rank] += load * home.weight / PARTS
    return found


def slowest(layer: LayerMap, loads: Sequence[float], speeds: Sequence[float]) -> float:
    """Tokens of the rank that finishes last; a slow rank's are divided by its speed.

    Args:
        speeds: [rank], as `split` takes them.
    """
    return max(
        (load / speed for load, speed in zip(rank_loads(layer, loads, len(speeds)), speeds, strict=True)), default=0.0
    )


def balancedness(loads: Iterable[float]) -> float:
    """Mean over the largest of the ranks' loads, at most 1; 1 without load.

    Args:
        loads: of the ranks that hold experts.
    Source: the reciprocal of what `hardware.cost` calls imbalance (busiest die over mean).
    """
    all_loads = list(loads)
    largest = max(all_loads, default=0)
    return sum(all_loads) / len(all_loads) / largest if largest > 0 else 1.0


def _fill(places: Sequence[Sequence[ExpertSlot]], loads: Sequence[float], speeds: Sequence[float]) -> list[list[int]]:
    """Weights of each expert's homes. Assigns the heaviest experts first, and repeats until the weights are stable."""
    times = [0.0] * len(speeds)
    weights = [[PARTS] if len(own) == 1 else [0] * len(own) for own in places]
    for own, load in zip(places, loads, strict=True):
        if len(own) == 1:
            times[own[0].rank] += load / speeds[own[0].rank]
    several = [expert for expert in sorted(range(len(loads)), key=lambda one: -loads[one]) if len(places[expert]) > 1]
    for _ in range(MAX_ROUNDS):
        before = [weights[expert] for expert in several]
        for expert in several:
            own, part = places[expert], loads[expert] / PARTS
            for at, weight in zip(own, weights[expert], strict=True):
                times[at.rank] -= weight * part / speeds[at.rank]
            weights[expert] = _deal([times[at.rank] for at in own], [part / speeds[at.rank] for at in own])
            for at, weight in zip(own, weights[expert], strict=True):
                times[at.rank] += weight * part / speeds[at.rank]
        if before == [weights[expert] for expert in several]:
            break
    return weights


def _deal(times: Sequence[float], parts: Sequence[float]) -> list[int]:
    """Sixteenths of one expert, each to the home that would finish first. An expert without load is split evenly.

    Args:
        times: of each home without this expert.
        parts: time that a sixteenth adds to each.
    """
    if not any(parts):
        return [PARTS // len(times) + (home < PARTS % len(times)) for home in range(len(times))]
    dealt = [0] * len(times)
    homes = range(len(times))
    for _ in range(PARTS):
        dealt[min(homes, key=lambda home: (times[home] + (dealt[home] + 1) * parts[home], home))] += 1
    return dealt
