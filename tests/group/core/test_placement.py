"""Placement policies: known results, and properties of any layer and group."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import PlacementError
from serving.group.core.placement import GroupShape, StaticPlacement, balancedness, rank_loads, split
from serving.group.core.placement_policies import (
    GlobalPlacement,
    HierarchicalPlacement,
    TimeSlicedPlacement,
    choose_copies,
    first_homes,
)
from serving.values.expert_map import ExpertMap, Placement
from tests.group.core.strategies import POLICIES, layers

EPLB_LAYERS = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)
EPLB_ANSWERS = (
    ((5, 6), (5, 7), (8, 4), (3, 4), (10, 9), (10, 2), (0, 1), (11, 1)),
    ((7, 10), (6, 8), (6, 11), (8, 9), (2, 4), (5, 1), (5, 0), (3, 1)),
)
"""The example in the README of DeepSeek's EPLB: 12 experts, 16 slots, 4 groups, 2 nodes, 8 GPUs."""
EIGHT = GroupShape((2,) * 8, (0,) * 4 + (1,) * 4)


def even_loads(placement: Placement, loads: tuple[int, ...]) -> list[float]:
    """Tokens of each rank if copies share evenly."""
    copies = Counter(expert for held in placement for expert in held if expert is not None)
    return [sum(loads[one] / copies[one] for one in held if one is not None) for held in placement]


@pytest.mark.parametrize("layer", [0, 1])
def test_the_example_of_eplb_is_reproduced(layer: int) -> None:
    assert HierarchicalPlacement(4).place((EPLB_LAYERS[layer],), 12, EIGHT) == EPLB_ANSWERS[layer]


def test_the_example_as_one_node_never_doubles_an_expert_on_a_rank() -> None:
    """The original reaches 1.073 in the first layer by two copies of one expert on a GPU; the second layer agrees."""
    placed = [GlobalPlacement().place((loads,), 12, EIGHT) for loads in EPLB_LAYERS]
    assert placed[0][6:] == ((8, 1), (1, 3))
    worst = [1 / balancedness(even_loads(one, loads)) for one, loads in zip(placed, EPLB_LAYERS, strict=True)]
    assert worst == pytest.approx([1.076, 1.190], abs=5e-4)


def test_time_slices_choose_whoever_is_hottest_at_some_time() -> None:
    """Computed by hand from xDeepServe's rule: the sum of peaks falls 270, 215, 165, 135, 115."""
    by_expert = ((90, 80, 10), (10, 10, 100), (30, 70, 30), (20, 20, 20))
    load = tuple(zip(*by_expert, strict=True))
    assert choose_copies(load, 4, 4, most=4) == [0, 1, 2, 0]
    peaks = []
    for copies in range(5):
        counts = Counter({one: 1 for one in range(4)}) + Counter(choose_copies(load, 4, copies, most=4))
        peaks.append(sum(max(tokens / counts[one] for one, tokens in enumerate(row)) for row in load))
    assert peaks == [270, 215, 165, 135, 115]


def test_time_slices_leave_first_homes_where_they_are() -> None:
    shape = GroupShape((3,) * 4, (0,) * 4)
    load = ((10, 10, 10, 90, 10, 10, 10, 10),)
    first = TimeSlicedPlacement().place(load, 8, shape)
    assert [held[:2] for held in first] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert Counter(expert for held in first for expert in held)[3] == 4
    moved = TimeSlicedPlacement().place(((90, *[10] * 7),), 8, shape, first)
    assert [set(held[:2]) for held in moved] == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_first_homes_do_not_drift_to_copies() -> None:
    shape = GroupShape((2, 2, 1), (0,) * 3)
    assert first_homes(3, shape, ((0, 2), (1, 0), (2,))) == [0, 1, 2]
    assert first_homes(3, shape, ((1, 2), (1, 0), (None,))) == [1, 1, 0]
    assert first_homes(3, shape, ((1, None), (1, None), (None,)))[0] is None


def test_static_is_in_order_of_numbers() -> None:
    shape = GroupShape((3, 3, 0, 3), (0,) * 4)
    assert StaticPlacement().place((), 8, shape) == ((0, 1, 2), (3, 4, 5), (), (6, 7, None))


def test_groups_stay_on_their_nodes_though_nothing_divides() -> None:
    shape = GroupShape((3, 2, 4), (0, 0, 1))
    placed = HierarchicalPlacement(2).place(((9, 1, 1, 1, 9, 1, 1),), 7, shape)
    nodes = [{0, 1, 2}, {3, 4, 5, 6}]
    held = [{*placed[0], *placed[1]} - {None}, {*placed[2]} - {None}]
    assert held in (nodes, nodes[::-1])


def test_groups_that_fit_no_node_are_spread_over_all() -> None:
    placed = HierarchicalPlacement(2).place((), 4, GroupShape((1, 3), (0, 1)))
    assert {expert for held in placed for expert in held} == {0, 1, 2, 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_too_few_slots_are_refused(policy: str) -> None:
    with pytest.raises(PlacementError, match="5 experts need as many slots, but the group has 4"):
        POLICIES[policy].place((), 5, GroupShape((2, 2), (0, 0)))


@pytest.mark.parametrize("policy", POLICIES)
@given(layer=layers(), others=st.sampled_from(sorted(POLICIES)))
def test_every_layer_of_every_group_gets_a_good_map(policy: str, layer: tuple, others: str) -> None:
    shape, experts, load = layer
    current = POLICIES[others].place(load[:1], experts, shape)
    placed = POLICIES[policy].place(load, experts, shape, current)
    assert tuple(map(len, placed)) == shape.slots
    if policy in ("global", "time_sliced"):
        assert all(None not in held or len(set(held)) > experts for held in placed), "a slot is left for nothing"
    loads = tuple(map(sum, zip(*load, strict=True))) if load else (0,) * experts
    one = split(placed, loads)
    assert not one.masked
    ExpertMap(1, shape.slots, (one,)).check()
    assert sum(rank_loads(one, loads, len(shape.slots))) == pytest.approx(sum(loads))
