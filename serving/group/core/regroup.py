"""Map of a group whose members have changed: contents of slots, and missing experts in the members' reserves.

A rank's reserve follows its own slots: one slot for every expert of the layer, which takes no memory until it is
filled. Each reserve slot holds only its own expert, so it can be filled while any map is in use.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from serving.errors import PlacementError
from serving.group.core.split import split
from serving.values.expert_map import ExpertMap, LayerMap
from serving.values.expert_moves import Held


def regroup_map(
    contents: Mapping[int, Held],
    ranks: int,
    experts: int,
    version: int,
    loads: Sequence[Sequence[float]] = (),
    speeds: Sequence[float] | None = None,
) -> ExpertMap:
    """The map. The number of own slots may differ between ranks, and the number of ranks between calls.

    Args:
        contents: {member with experts: known contents of its own slots}.
        ranks: of the group, including missing ones.
        experts: of a layer.
        version: higher than that of any map before.
        loads: [layer][expert] tokens, for weights and for the choice of borrowers; equal by default.
        speeds: [rank], as `split` takes them.
    Returns: a map in which every expert has a home, and whose slots count the reserves.
    Raises: PlacementError without members, or if their layers differ in number.
    """
    layers = {len(held) for held in contents.values()}
    if len(layers) != 1:
        raise PlacementError(f"members have {sorted(layers)} layers with experts")
    slots = tuple(len(contents[rank][0]) + experts if rank in contents else 0 for rank in range(ranks))
    even = (1.0,) * experts
    rows = [loads[layer] if layer < len(loads) and any(loads[layer]) else even for layer in range(*layers)]
    return ExpertMap(
        version, slots, tuple(_layer(contents, layer, slots, row, speeds) for layer, row in enumerate(rows))
    )


def _layer(
    contents: Mapping[int, Held],
    layer: int,
    slots: Sequence[int],
    loads: Sequence[float],
    speeds: Sequence[float] | None,
) -> LayerMap:
    experts = len(loads)
    held: list[list[int | None]] = [
        [*contents[rank][layer], *[None] * experts] if rank in contents else [] for rank in range(len(slots))
    ]
    copies = Counter(expert for row in held for expert in row if expert is not None)
    busy = {rank: sum(loads[one] / copies[one] for one in held[rank] if one is not None) for rank in sorted(contents)}
    homeless = sorted((one for one in range(experts) if not copies[one]), key=lambda one: (-loads[one], one))
    for expert in homeless:
        rank = min(busy, key=busy.__getitem__)
        held[rank][slots[rank] - experts + expert] = expert
        busy[rank] += loads[expert] or 1e-9  # even experts without tokens are shared out
    return split(tuple(map(tuple, held)), loads, speeds)
