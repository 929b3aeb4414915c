"""Weights of replicas by water-filling: each sixteenth of an expert's tokens goes to its least loaded home.

An even split ignores the other load of a rank. It can make a balanced layer worse than without replicas.
"""

from collections.abc import Iterable, Sequence

from serving.values.expert_map import PARTS, ExpertHome, ExpertSlot, LayerMap, Placement

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
