"""Expert maps of a group: the first one, and one after its members changed."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from serving.errors import PlacementError
from serving.group.core.placement import GroupShape, PlacementPolicy, StaticPlacement, split
from serving.group.core.placement_policies import GlobalPlacement
from serving.values.expert_map import ExpertMap, Held, LayerMap

# Initial map of a group: experts placed by a policy before any load is known.


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
        key = "ep" if holders is None else "expert_ranks"
        raise PlacementError(
            f"{key} = {able}, but a layer of this model has {experts} experts: set it to {experts} at most, or give "
            f"each rank one more slot with [experts] redundant = 1"
        )
    return first_map(shape, experts, layers, GlobalPlacement())


def contents_of(of: ExpertMap, rank: int) -> Held:
    """Contents of a rank's slots under a map."""
    return tuple(of.placement(layer)[rank] for layer in range(len(of.layers)))


# Map of a group whose members have changed: contents of slots, and missing experts in the members' reserves.
#
# A rank's reserve follows its own slots: one slot for every expert of the layer, which takes no memory until it is
# filled. Each reserve slot holds only its own expert, so it can be filled while any map is in use.


def regroup_map(
    contents: Mapping[int, Held],
    ranks: int,
    experts: int,
    version: int,
    loads: Sequence[Sequence[float]] = (),
    speeds: Sequence[float] | None = None,
    borrowed: Sequence[Mapping[int, int]] = (),
    masks: bool = False,
) -> ExpertMap:
    """The map. The number of own slots may differ between ranks, and the number of ranks between calls.

    Args:
        contents: {member with experts: known contents of its own slots}.
        ranks: of the group, including missing ones.
        experts: of a layer.
        version: higher than that of any map before.
        loads: [layer][expert] tokens, for weights and for the choice of borrowers; equal by default.
        speeds: [rank], as `split` takes them.
        borrowed: [layer] experts whose weights are in a member's reserve already, with that rank; only with `masks`.
        masks: mask experts that no member has in memory, in place of filling reserves.
    Returns: a map in which every expert has a home or is masked, and whose slots count the reserves.
    Raises: PlacementError without members, or if their layers differ in number.
    """
    layers = {len(held) for held in contents.values()}
    if len(layers) != 1:
        raise PlacementError(f"members have {sorted(layers)} layers with experts")
    slots = tuple(len(contents[rank][0]) + experts if rank in contents else 0 for rank in range(ranks))
    even = (1.0,) * experts
    rows = [loads[layer] if layer < len(loads) and any(loads[layer]) else even for layer in range(*layers)]
    here = [borrowed[layer] if layer < len(borrowed) else {} for layer in range(len(rows))] if masks else None
    return ExpertMap(
        version,
        slots,
        tuple(
            _layer(contents, layer, slots, row, speeds, None if here is None else here[layer])
            for layer, row in enumerate(rows)
        ),
    )


def _layer(
    contents: Mapping[int, Held],
    layer: int,
    slots: Sequence[int],
    loads: Sequence[float],
    speeds: Sequence[float] | None,
    borrowed: Mapping[int, int] | None,
) -> LayerMap:
    """Args: borrowed: experts that stay in a rank's reserve, others without a slot being masked; None = none is."""
    experts = len(loads)
    held: list[list[int | None]] = [
        [*contents[rank][layer], *[None] * experts] if rank in contents else [] for rank in range(len(slots))
    ]
    copies = Counter(expert for row in held for expert in row if expert is not None)
    busy = {rank: sum(loads[one] / copies[one] for one in held[rank] if one is not None) for rank in sorted(contents)}
    homeless = sorted((one for one in range(experts) if not copies[one]), key=lambda one: (-loads[one], one))
    for expert in homeless:
        if borrowed is not None and borrowed.get(expert) not in contents:
            continue
        rank = min(busy, key=busy.__getitem__) if borrowed is None else borrowed[expert]
        held[rank][slots[rank] - experts + expert] = expert
        busy[rank] += loads[expert] or 1e-9  # even experts without tokens are shared out
    return split(tuple(map(tuple, held)), loads, speeds)
