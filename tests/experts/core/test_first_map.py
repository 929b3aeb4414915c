"""The map that a group begins with, for any number of experts and ranks."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import PlacementError
from serving.experts.core.deepseek import GlobalPlacement
from serving.experts.core.first_map import first_map, group_shape, map_of_members, opening_map


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


@given(st.integers(1, 20), st.integers(1, 6), st.integers(0, 2), st.data())
def test_whoever_is_left_holds_every_expert(experts: int, ranks: int, redundant: int, data: st.DataObject) -> None:
    if experts // ranks + redundant == 0:
        with pytest.raises(PlacementError, match=f"ep = {ranks}, but a layer of this model has {experts} experts"):
            opening_map(experts, ranks, redundant, 2)
        return
    opening = opening_map(experts, ranks, redundant, 2)
    opening.check()
    own = group_shape(experts, ranks, redundant).slots
    assert opening.slots == tuple(slots + experts for slots in own)
    members = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1).map(frozenset))
    left = map_of_members(opening, members, 7)
    left.check()
    assert left.version == 7
    for layer in range(2):
        before, now = opening.placement(layer), left.placement(layer)
        for rank in range(ranks):
            if rank not in members:
                assert set(now[rank]) <= {None}, "nobody is sent to who is missing"
                continue
            assert now[rank][: own[rank]] == before[rank][: own[rank]], "what is there stays"
            reserve = now[rank][own[rank] :]
            assert all(held in (None, expert) for expert, held in enumerate(reserve)), "a slot for each"
    assert map_of_members(opening, members, 7) == left, "whoever makes it"


def test_lost_experts_are_shared_out_evenly() -> None:
    opening = opening_map(8, 4, 0, 1)
    held = map_of_members(opening, frozenset({0, 1}), 2).placement(0)
    assert [sum(expert is not None for expert in part) for part in held] == [4, 4, 0, 0]
    assert map_of_members(opening, frozenset(range(4)), 3).layers == opening.layers
