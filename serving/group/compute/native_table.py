"""Expert map as the native step reads it."""

import numpy as np
import numpy.typing as npt

from serving.errors import PlacementError
from serving.model.native.layout import MAP_MASKED
from serving.model.slots.slot_region import MOST_SLOTS
from serving.values.expert_map import PARTS, ExpertMap, ExpertSlot

_RANK_SHIFT = 16

Table = npt.NDArray[np.uint32]


def native_table(map_: ExpertMap, rank: int, before: tuple[ExpertMap, Table] | None = None) -> Table:
    """Slots that a rank sends its tokens to: `[expert layer][position mod 16][expert] uint32`.

    An entry is `rank << 16 | slot`, the slot numbered over all layers of the rank that holds it; `MAP_MASKED` = none.

    Args:
        rank: whose table it is; each begins at its own place in the rotation.
        before: another map with this rank's table of it: layers that are equal are taken from there.
    Raises: PlacementError if a rank has more slots than an entry can name.
    """
    if max(map_.slots) * len(map_.layers) > MOST_SLOTS or len(map_.slots) > MAP_MASKED >> _RANK_SHIFT:
        raise PlacementError(f"{len(map_.slots)} ranks, {max(map_.slots)} slots in {len(map_.layers)} layers: too many")
    table = np.empty((len(map_.layers), PARTS, len(map_.layers[0].homes)), np.uint32)
    for layer, one in enumerate(map_.layers):
        if before is not None and before[0].slots == map_.slots and before[0].layers[layer] == one:
            table[layer] = before[1][layer]
        else:
            rows = map_.rotation(layer, rank)
            table[layer] = [[MAP_MASKED if at is None else _entry(map_, layer, at) for at in row] for row in rows]
    return table


def _entry(map_: ExpertMap, layer: int, at: ExpertSlot) -> int:
    return at.rank << _RANK_SHIFT | (layer * map_.slots[at.rank] + at.slot)
