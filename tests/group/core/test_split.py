"""Weights of copies."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.group.core.placement import balancedness, rank_loads, split
from serving.values.expert_map import PARTS


def test_a_copy_beside_a_busy_expert_gets_little() -> None:
    """Evenly split, rank 0 would have 120 of 160; the water level is 80."""
    one = split(((0, 1), (1,)), (60, 100))
    assert [home.weight for home in one.homes[1]] == [3, 13]
    assert rank_loads(one, (60, 100), 2) == [78.75, 81.25]


def test_a_slow_rank_gets_less() -> None:
    one = split(((0,), (0,)), (90,), speeds=(1.0, 0.5))
    assert [home.weight for home in one.homes[0]] == [11, 5]


def test_an_expert_without_load_is_split_evenly_and_one_without_home_is_masked() -> None:
    one = split(((0,), (0,), (0,)), (0, 7))
    assert [home.weight for home in one.homes[0]] == [6, 5, 5]
    assert one.masked == {1}


def test_balancedness_is_mean_over_largest() -> None:
    assert balancedness([3, 1]) == pytest.approx(2 / 3)
    assert balancedness([0, 0]) == balancedness([]) == 1


@given(
    placement=st.lists(st.frozensets(st.integers(0, 2), max_size=3).map(sorted).map(tuple), min_size=2, max_size=3),
    loads=st.tuples(*[st.integers(0, 100)] * 3),
)
def test_no_other_weights_of_one_expert_would_be_better(placement: list, loads: tuple[int, ...]) -> None:
    """A fixed point: no other division of one expert gives the busiest rank less."""
    ranks = len(placement)
    one = split(tuple(placement), loads)
    peak = max(rank_loads(one, loads, ranks))
    for expert, homes in enumerate(one.homes):
        others = rank_loads(one, [0 if other == expert else load for other, load in enumerate(loads)], ranks)
        for parts in itertools.product(range(PARTS + 1), repeat=max(len(homes) - 1, 0)):
            if homes and sum(parts) <= PARTS:
                weights = (*parts, PARTS - sum(parts))
                now = list(others)
                for home, weight in zip(homes, weights, strict=True):
                    now[home.at.rank] += loads[expert] * weight / PARTS
                assert max(now) >= peak - 1e-6
