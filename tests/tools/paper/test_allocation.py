"""Blocks on a supernode: nothing is given away twice, and what cannot be split is not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tools.paper.figure_24_allocation import FAMILIES, MEANS, NODE_NPUS, SizeFamily, _place, allocation_rate


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("mean", MEANS)
def test_families_have_the_published_mean(family: SizeFamily, mean: float) -> None:
    probabilities = family.probabilities(mean)
    assert sum(probabilities) == pytest.approx(1)
    assert sum(p * size for p, size in zip(probabilities, family.sizes, strict=True)) == pytest.approx(mean)


def test_single_npus_fill_everything() -> None:
    assert allocation_rate(64, [1], [1.0], 500, random.Random(0)) == pytest.approx(1.0)


def test_blocks_that_do_not_divide_a_node_leave_the_rest() -> None:
    assert allocation_rate(64, [5], [1.0], 500, random.Random(0)) == pytest.approx(5 / 8)


def test_blocks_larger_than_the_supernode_are_passed_over() -> None:
    rate = allocation_rate(16, [8, 64], [0.5, 0.5], 300, random.Random(1))
    assert rate == pytest.approx(1.0)


@given(st.lists(st.integers(0, NODE_NPUS), min_size=1, max_size=12), st.integers(1, 64))
@settings(max_examples=200)
def test_a_place_has_the_size_and_is_free(free: list[int], size: int) -> None:
    place = _place(free, size)
    if place is None:
        return
    assert sum(count for _, count in place) == size
    assert len({node for node, _ in place}) == len(place)
    assert all(0 < count <= free[node] for node, count in place)
    assert len(place) == -(-size // NODE_NPUS)


def test_larger_supernodes_are_used_better() -> None:
    family = FAMILIES[0]
    weights = family.probabilities(MEANS[0])
    small, large = (allocation_rate(npus, family.sizes, weights, 4000, random.Random(2)) for npus in (160, 384))
    assert large > small
