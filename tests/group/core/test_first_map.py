"""The initial map of a group, for any number of experts and ranks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import PlacementError
from serving.group.core.group_map import contents_of, first_map, group_shape, opening_map
from serving.group.core.placement_policies import GlobalPlacement


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 3), st.integers(1, 3))
def test_every_expert_has_a_home_and_ranks_share_evenly(experts: int, ranks: int, redundant: int, layers: int) -> None:
    shape = group_shape(experts, ranks, redundant)
    assert sum(shape.slots) == experts + ranks * redundant
    assert max(shape.slots) - min(shape.slots) <= 1
    for policy in (None, GlobalPlacement()):
        one = first_map(shape, experts, layers, policy)
        one.check()
        assert one.version == 1
        assert not any(layer.masked for layer in one.layers)
    held = first_map(shape, experts).placement(0)
    assert [expert for part in held for expert in part if expert is not None] == list(range(experts))
    assert Counter(part.count(None) for part in held) == {redundant: ranks}


def test_a_policy_uses_redundant_slots() -> None:
    held = first_map(group_shape(4, 2, 1), 4, policy=GlobalPlacement()).placement(0)
    assert all(None not in part for part in held)


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 2))
def test_a_rank_without_experts_is_refused(experts: int, ranks: int, redundant: int) -> None:
    if experts // ranks + redundant == 0:
        with pytest.raises(PlacementError, match=f"ep = {ranks}, but a layer of this model has {experts} experts"):
            opening_map(experts, ranks, redundant, 2)
        return
    opening = opening_map(experts, ranks, redundant, 2)
    opening.check()
    assert opening.slots == group_shape(experts, ranks, redundant).slots
    assert contents_of(opening, 0) == (opening.placement(0)[0],) * 2
