"""The native table equals the map."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import PlacementError
from serving.group.compute.slot_mover import native_table
from serving.group.core.group_map import first_map, group_shape
from serving.group.core.placement import split
from serving.group.core.placement_policies import GlobalPlacement
from serving.model.native.layout import MAP_MASKED
from serving.values.expert_map import ExpertHome, ExpertMap, ExpertSlot, LayerMap
from tests.group.core.strategies import layers


@given(layers(), st.data())
def test_each_entry_is_the_slot_of_the_rotation(one: tuple, data: st.DataObject) -> None:
    shape, experts, load = one
    placement = GlobalPlacement().place(load, experts, shape)
    lost = data.draw(st.integers(0, len(shape.slots) - 1))
    kept = tuple(part if rank != lost else (None,) * len(part) for rank, part in enumerate(placement))
    map_ = ExpertMap(1, shape.slots, tuple(split(part, [1] * experts) for part in (placement, kept)))
    rank = data.draw(st.integers(0, len(shape.slots) - 1))
    table = native_table(map_, rank)
    assert table.shape == (2, 16, experts)
    assert table.dtype == np.uint32
    for layer in range(2):
        for position, row in enumerate(map_.rotation(layer, rank)):
            for expert, at in enumerate(row):
                entry = int(table[layer, position, expert])
                if at is None:
                    assert entry == MAP_MASKED
                    assert expert in map_.layers[layer].masked
                else:
                    slot = layer * shape.slots[at.rank] + at.slot
                    assert (entry >> 16, entry & 0xFFFF) == (at.rank, slot)
    other = first_map(shape, experts, 2)
    assert np.array_equal(native_table(map_, rank, (other, native_table(other, rank))), table)


def test_an_entry_by_hand() -> None:
    homes = (ExpertHome(ExpertSlot(0, 1), 8), ExpertHome(ExpertSlot(1, 0), 8))
    layer = LayerMap((homes, ()), frozenset({1}))
    table = native_table(ExpertMap(3, (2, 1), (layer, layer)), 1)
    assert [hex(entry) for entry in table[1, :3, 0]] == ["0x10001", "0x3", "0x10001"]
    assert set(table[:, :, 1].flatten().tolist()) == {MAP_MASKED}


def test_a_rank_with_too_many_slots_is_refused() -> None:
    with pytest.raises(PlacementError, match="too many"):
        native_table(first_map(group_shape(2, 1, 40000), 2, layers=2), 0)
