"""Facts about experts that a rank announces: exact, and small for any model."""

import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.group.compute.rank_experts import RankFacts, rank_shares
from serving.group.core.group_map import first_map, group_shape, opening_map
from serving.group.core.placement import rank_loads, split
from serving.group.core.placement_policies import GlobalPlacement
from serving.values.expert_map import ExpertFacts, ExpertMap, ExpertRows
from tests.group.core.strategies import layers
from tests.group.maps import map_of


@given(layers(), st.integers(0, 2**32 - 1))
def test_shares_are_those_of_rank_loads(one: tuple, seed: int) -> None:
    shape, experts, load = one
    layer = split(GlobalPlacement().place(load, experts, shape), [1] * experts)
    tokens = np.random.default_rng(seed).integers(0, 1000, experts)
    found = tokens @ rank_shares(ExpertMap(1, shape.slots, (layer,)))[0]
    assert found == pytest.approx(rank_loads(layer, tokens.tolist(), len(shape.slots)))


def test_a_small_model_is_told_whole() -> None:
    rows = np.array([[8, 0, 4, 1], [0, 0, 0, 5]], np.uint64)
    found = RankFacts(opening_map(4, 2, 0, layers=2), 1, 2, (0, 1)).of(rows, epoch=3, map_version=7)
    assert (found.epoch, found.map_version, found.members, found.ranks, found.experts) == (3, 7, (0, 1), 2, 4)
    assert found.rows == ((8, 0, 4, 1), (0, 0, 0, 5))
    assert found.sent == (13, 5)
    assert tuple(map(len, found.held)) == (2, 2)
    mine = sum(found.rows[0][expert] for expert in found.held[0])
    assert found.to_ranks[0] == (13 - mine, mine)
    assert (found.held_count, found.borrowed, found.busiest) == (4, (), ())
    assert msgspec.convert(msgspec.to_builtins(found), ExpertFacts) == found


def test_experts_of_a_lost_rank_are_borrowed() -> None:
    opening = opening_map(4, 2, 0, layers=1)
    own = RankFacts(opening, 0, 2, (0, 1)).of(np.ones((1, 4), np.uint64), 1, 1).held[0]
    found = RankFacts(map_of(opening, [0], 2), 0, 2, (0,)).of(np.ones((1, 4), np.uint64), 2, 2)
    assert found.held == (own,)
    assert {expert for _, expert in found.borrowed} == set(range(4)) - set(own)
    assert (found.held_count, found.borrowed_count, found.to_ranks) == (2, 2, ((4, 0),))


def test_a_large_model_tells_its_busiest_experts_in_a_few_kib() -> None:
    rows = np.random.default_rng(1).integers(2**32, 2**40, (58, 256)).astype(np.uint64)
    rows[57, 255] = 2**41
    opening = opening_map(256, 8, 1, layers=58)
    facts = RankFacts(map_of(opening, range(7), 2), 0, 33, range(7)).of(rows, 1, 1)
    assert facts.busiest[0] == ExpertRows(57, 255, 2**41)
    assert len(facts.busiest) == len(facts.borrowed) == 32
    assert facts.borrowed_count > 32
    assert (facts.rows, facts.held) == ((), ())
    assert sum(facts.sent) == pytest.approx(int(rows.sum()), abs=58 * 8)
    assert len(pickle.dumps(msgspec.to_builtins(facts))) < 8192


def test_a_rank_of_many_names_all_experts_that_it_holds() -> None:
    """The table of all experts is too large for this model: 58 layers of 256 experts, 8 on each of 32 ranks."""
    facts = RankFacts(opening_map(256, 32, 0, layers=58), 3, 8, range(32)).of(np.zeros((58, 256), np.uint64), 1, 1)
    assert facts.rows == ()
    assert facts.held == (tuple(range(3, 256, 32)),) * 58


def test_experts_without_rows_are_not_busy() -> None:
    facts = RankFacts(first_map(group_shape(2048, 1), 2048), 0, 2048, (0,)).of(np.zeros((1, 2048), np.uint64), 1, 1)
    assert facts.busiest == ()
