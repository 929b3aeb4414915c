"""Initial map of a group: experts placed by a policy before any load is known."""

from collections.abc import Collection

from serving.errors import PlacementError
from serving.group.core.deepseek import GlobalPlacement
from serving.group.core.placement import GroupShape, PlacementPolicy, StaticPlacement
from serving.group.core.split import split
from serving.values.expert_map import ExpertMap
from serving.values.expert_moves import Held


def group_shape(
    experts: int,
    ranks: int,
    redundant: int = 0,
    nodes: tuple[int, ...] | None = None,
    holders: Collection[int] | None = None,
) -> GroupShape:
    """Room of a group whose ranks share the experts evenly, the first ranks taking the remainder.

    Args:
        experts: of a layer.
        redundant: slots of a rank in addition to its share.
        nodes: [rank] its node; all on one by default.
        holders: ranks with experts; all by default.
    Raises: PlacementError if there are none.
    """
    able = range(ranks) if holders is None else sorted(holders)
    if not able:
        raise PlacementError("no rank of the group holds experts")
    share, more = divmod(experts, len(able))
    room = {rank: share + (place < more) + redundant for place, rank in enumerate(able)}
    return GroupShape(tuple(room.get(rank, 0) for rank in range(ranks)), nodes or (0,) * ranks)


def first_map(shape: GroupShape, experts: int, layers: int = 1, policy: PlacementPolicy | None = None) -> ExpertMap:
    """The first map of a group, its version 1.

    Args:
        layers: with routed experts.
        policy: gets an even load; by default experts are placed by number, and redundant slots are empty.
    Raises: PlacementError if the group has too few slots.
    """
    even = (1,) * experts
    placement = (policy or StaticPlacement()).place((even,), experts, shape)
    return ExpertMap(1, shape.slots, (split(placement, even),) * layers)


def opening_map(
    experts: int, ranks: int, redundant: int, layers: int, holders: Collection[int] | None = None
) -> ExpertMap:
    """The map of a new group on one node: experts are placed evenly, redundant slots get second copies.

    Args:
        holders: ranks with experts; all by default.
    Raises: PlacementError if one of them would have no expert.
    """
    shape = group_shape(experts, ranks, redundant, holders=holders)
    able = ranks if holders is None else len(holders)
    if len(shape.ranks()) < able:
        raise PlacementError(
            f"ep = {able}, but a layer of this model has {experts} experts: set it to {experts} at most, or give "
            f"each rank one more slot with [experts] redundant = 1"
        )
    return first_map(shape, experts, layers, GlobalPlacement())


def contents_of(of: ExpertMap, rank: int) -> Held:
    """Contents of a rank's slots under a map."""
    return tuple(of.placement(layer)[rank] for layer in range(len(of.layers)))
