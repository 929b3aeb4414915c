"""Map that a group begins with: experts where a placement policy wants them before there is any load to go by."""

from collections import Counter

import msgspec

from serving.errors import PlacementError
from serving.experts.core.deepseek import GlobalPlacement
from serving.experts.core.expert_map import ExpertMap, LayerMap
from serving.experts.core.placement import GroupShape, PlacementPolicy, StaticPlacement
from serving.experts.core.split import split


def group_shape(experts: int, ranks: int, redundant: int = 0, nodes: tuple[int, ...] | None = None) -> GroupShape:
    """Room of a group whose ranks share the experts evenly, the first ones taking what is left over.

    Args:
        experts: of a layer.
        redundant: slots of a rank beside its share.
        nodes: [rank] its node; all on one by default.
    """
    share, more = divmod(experts, ranks)
    slots = tuple(share + (rank < more) + redundant for rank in range(ranks))
    return GroupShape(slots, nodes or (0,) * ranks)


def first_map(shape: GroupShape, experts: int, layers: int = 1, policy: PlacementPolicy | None = None) -> ExpertMap:
    """The first map of a group, its version 1.

    Args:
        layers: with routed experts.
        policy: told that all experts are alike; by default experts lie as they are numbered, redundant slots empty.
    Raises: PlacementError if the group has too few slots.
    """
    even = (1,) * experts
    placement = (policy or StaticPlacement()).place((even,), experts, shape)
    return ExpertMap(1, shape.slots, (split(placement, even),) * layers)


def opening_map(experts: int, ranks: int, redundant: int, layers: int) -> ExpertMap:
    """The map of a new group on one node: experts are dealt out evenly, redundant slots get second copies.

    Behind those each rank has a reserve: one slot for every expert of the layer, see `map_of_members`.

    Raises: PlacementError if a rank would have no expert at all.
    """
    shape = group_shape(experts, ranks, redundant)
    if min(shape.slots) == 0:
        raise PlacementError(
            f"ep = {ranks}, but a layer of this model has {experts} experts: set it to {experts} at most, or give each"
            f" rank a slot more with [experts] redundant = 1"
        )
    found = first_map(shape, experts, layers, GlobalPlacement())
    return msgspec.structs.replace(found, slots=tuple(slots + experts for slots in shape.slots))


def map_of_members(opening: ExpertMap, members: frozenset[int], version: int) -> ExpertMap:
    """Map of a group that lacks some of its ranks: the opening one, with the experts of those in the others' reserves.

    It follows from its arguments alone, so that every rank makes the same one. A slot of the reserve never holds
    another expert than its own: it can be filled while any map is in use.

    Args:
        members: of the ranks that the opening map names; not none.
        version: of the new map.
    """
    if len(members) == len(opening.slots):
        return msgspec.structs.replace(opening, version=version)
    layers = tuple(_layer_of(opening, layer, members) for layer in range(len(opening.layers)))
    return ExpertMap(version, opening.slots, layers)


def _layer_of(opening: ExpertMap, layer: int, members: frozenset[int]) -> LayerMap:
    experts = len(opening.layers[layer].homes)
    held = [list(slots) if rank in members else [] for rank, slots in enumerate(opening.placement(layer))]
    copies = Counter(expert for slots in held for expert in slots if expert is not None)
    busy = {rank: sum(1 / copies[one] for one in held[rank] if one is not None) for rank in sorted(members)}
    for expert in range(experts):
        if not copies[expert]:
            rank = min(busy, key=busy.__getitem__)
            held[rank][len(held[rank]) - experts + expert] = expert
            busy[rank] += 1
    return split(tuple(map(tuple, held)), (1,) * experts)
