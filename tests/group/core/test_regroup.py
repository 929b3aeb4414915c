"""For any contents of slots, a regrouped map has a home for every expert, and uses existing copies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError, PlacementError
from serving.group.core.group_map import contents_of, opening_map, regroup_map
from serving.group.core.placement import split
from serving.group.core.slot_ledger import SlotLedger
from serving.values.expert_map import ExpertMap, ExpertSlot, Held


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[int, Held], int, int, tuple[tuple[float, ...], ...]]:
    """Members with any contents, ranks, experts, loads: two layers; ranks differ in their number of slots."""
    experts, ranks = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    members = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    expert = st.none() | st.integers(0, experts - 1)
    contents: dict[int, Held] = {}
    for rank in sorted(members):
        row = st.tuples(*[expert] * draw(st.integers(0, 4)))
        contents[rank] = (draw(row), draw(row))
    tokens = st.tuples(*[st.integers(0, 99).map(float)] * experts)
    return contents, ranks, experts, draw(st.just(()) | st.tuples(tokens, tokens))


@given(groups())
def test_every_expert_has_a_home_and_what_is_there_is_used(group: tuple) -> None:
    contents, ranks, experts, loads = group
    found = regroup_map(contents, ranks, experts, 7, loads)
    found.check()
    assert (found.version, len(found.slots)) == (7, ranks)
    for rank in range(ranks):
        held = contents.get(rank)
        assert found.slots[rank] == (len(held[0]) + experts if held is not None else 0)
    for layer, one in enumerate(found.layers):
        there = {expert for held in contents.values() for expert in held[layer] if expert is not None}
        for expert, homes in enumerate(one.homes):
            reserve = [home for home in homes if home.at.slot >= len(contents[home.at.rank][layer])]
            assert bool(reserve) == (expert not in there), "borrowed only if it lies nowhere"
            assert len(reserve) <= 1
            for home in homes:
                own = contents[home.at.rank][layer]
                wanted = own[home.at.slot] if home not in reserve else home.at.slot - len(own)
                assert wanted == expert, "no slot of a reserve ever holds another expert"
    assert regroup_map(contents, ranks, experts, 7, loads) == found


def test_lost_experts_are_shared_out_evenly() -> None:
    opening = opening_map(8, 4, 0, 1)
    left = {rank: contents_of(opening, rank) for rank in (0, 1)}
    held = regroup_map(left, 4, 8, 2).placement(0)
    assert [sum(expert is not None for expert in part) for part in held] == [4, 4, 0, 0]
    hot = regroup_map({0: ((0,),), 1: ((1,),)}, 2, 4, 2, ((1.0, 1.0, 9.0, 5.0),)).placement(0)
    assert (hot[0][1 + 2], hot[1][1 + 3]) == (2, 3), "by load"


def test_a_group_of_nobody_or_of_several_models_has_no_map() -> None:
    with pytest.raises(PlacementError):
        regroup_map({}, 2, 4, 1)
    with pytest.raises(PlacementError, match=r"\[1, 2\] layers"):
        regroup_map({0: ((0,),), 1: ((1,), (1,))}, 2, 4, 1)


def ledger_of(*held: Held) -> SlotLedger:
    """Four experts, one layer; an expert without a slot is borrowed."""
    contents = dict(enumerate(held))
    ledger = SlotLedger(regroup_map(contents, len(held), 4, 1), reserve=4)
    ledger.regroup(ledger.map, contents)
    ledger.check()
    return ledger


def test_a_borrowed_expert_counts_until_it_lies_somewhere() -> None:
    ledger = ledger_of(((0, 1, None),), ((2, None),))
    (expert,), (at,) = ledger.borrowed(0), ledger.borrowed(0).values()
    assert (expert, at.slot) == (3, 3 + 3 if at.rank == 0 else 2 + 3)
    assert ledger.usable(0) == {
        ExpertSlot(0, 0): 0, ExpertSlot(0, 1): 1, ExpertSlot(0, 2): None,
        ExpertSlot(1, 0): 2, ExpertSlot(1, 1): None,
    }  # fmt: skip
    assert ledger.contents(0)[at.rank][at.slot] == 3
    ledger.begin(0, ExpertSlot(1, 1))
    assert ledger.contents(0)[at.rank][at.slot] == 3
    ledger.loaded(0, ExpertSlot(1, 1), 3)
    assert ledger.contents(0)[at.rank][at.slot] is None
    assert ledger.contents(0)[1][1] == 3


def test_a_slot_that_is_being_loaded_is_in_no_map_until_its_rank_says_how_that_ended() -> None:
    ledger = ledger_of(((0, 1),), ((2, 3, 0),))
    with pytest.raises(LedgerError, match="in use by map"):
        ledger.begin(0, ExpertSlot(1, 2))
    without = split(ledger.contents(0, frozenset({ExpertSlot(1, 2)})), (1, 1, 1, 1))
    ledger.switch(ExpertMap(ledger.next_version(), ledger.map.slots, (without,)))
    ledger.begin(0, ExpertSlot(1, 2))
    assert ledger.held(1) == ((2, 3, None),)
    left = regroup_map({1: ledger.held(1)}, 2, 4, 5)
    ledger.regroup(left, {})
    assert left.placement(0)[1][2] is None
    assert set(ledger.borrowed(0)) == {0, 1}
    ledger.stopped(1, ((2, 3, 1),))
    assert ledger.held(1) == ((2, 3, 1),)
    assert ledger.held(0) == ((),), "who is missing has nothing"
    ledger.check()


def test_a_group_may_grow_and_shrink_with_ranks_of_any_size() -> None:
    ledger = ledger_of(((0, 1),), ((2, 3),))
    larger = {2: ((0,),), 3: ((1, 2, 3),)}
    ledger.regroup(regroup_map({0: ledger.held(0), 1: ledger.held(1), **larger}, 4, 4, 2), larger)
    ledger.check()
    assert list(ledger.map.slots) == [6, 6, 5, 7]
    ledger.regroup(regroup_map({0: ledger.held(0), 1: ledger.held(1)}, 2, 4, 3), {})
    ledger.check()
    assert list(ledger.map.slots) == [6, 6]
    ledger.claim()
    with pytest.raises(LedgerError, match="abandon the move first"):
        ledger.regroup(regroup_map({0: ledger.held(0)}, 2, 4, 4), {})
