"""Expert maps: checks, and the table that ranks read."""

from collections import Counter

import pytest
from hypothesis import given

from serving.errors import LedgerError
from serving.group.core.placement import split
from serving.group.core.placement_policies import GlobalPlacement
from serving.values.expert_map import PARTS, ExpertHome, ExpertMap, ExpertSlot, LayerMap
from tests.group.core.strategies import layers


def home(rank: int, slot: int, weight: int = PARTS) -> ExpertHome:
    """A home from its numbers."""
    return ExpertHome(ExpertSlot(rank, slot), weight)


def test_a_table_alternates_and_starts_at_the_rank() -> None:
    """xDeepServe's example: an expert with homes 2 and 1 alternates along positions."""
    one = ExpertMap(1, (2, 2), (LayerMap(((home(1, 0, 8), home(0, 1, 8)), (home(0, 0),))),))
    one.check()
    ranks = [row[0].rank for row in one.rotation(0, 0) if row[0]]
    assert ranks == [1, 0] * 8
    assert [row[0].rank for row in one.rotation(0, 1) if row[0]] == [0, 1] * 8
    assert {row[1] for row in one.rotation(0, 0)} == {ExpertSlot(0, 0)}
    assert one.placement(0) == ((1, 0), (0, None))


def test_weights_are_spread_along_positions() -> None:
    one = ExpertMap(1, (1, 1), (LayerMap(((home(0, 0, 12), home(1, 0, 4)),)),))
    assert [row[0].rank for row in one.rotation(0, 0) if row[0]] == [0, 0, 1, 0] * 4


def test_a_masked_expert_has_no_slot() -> None:
    one = ExpertMap(1, (1,), (LayerMap(((home(0, 0),), ()), frozenset({1})),))
    one.check()
    assert {row[1] for row in one.rotation(0, 0)} == {None}


@pytest.mark.parametrize(
    ("homes", "masked", "words"),
    [
        (((),), (), "has no home and is not masked"),
        (((home(0, 0),),), (0,), "masked, but has a home"),
        (((home(2, 0),),), (), "is not a slot of the group"),
        (((home(0, 2),),), (), "is not a slot of the group"),
        (((home(0, 0),), (home(0, 0),)), (), "is used twice"),
        (((home(0, 0, 8), home(0, 1, 8)),), (), "two homes on one rank"),
        (((home(0, 0, 8), home(1, 0, 7)),), (), "weights add up to 15, not 16"),
        (((home(0, 0, 17), home(1, 0, -1)),), (), "negative weight"),
    ],
)
def test_a_bad_map_is_refused(homes: tuple, masked: tuple, words: str) -> None:
    with pytest.raises(LedgerError, match=f"expert map 3, layer 0, expert .*{words}"):
        ExpertMap(3, (2, 1), (LayerMap(homes, frozenset(masked)),)).check()


@given(layers())
def test_tables_spread_tokens_exactly_by_weight(layer: tuple) -> None:
    shape, experts, load = layer
    placed = GlobalPlacement().place(load, experts, shape)
    one = ExpertMap(1, shape.slots, (split(placed, load[0] if load else (1,) * experts),))
    assert one.placement(0) == placed
    for rank in range(len(shape.slots)):
        table = one.rotation(0, rank)
        for expert, homes in enumerate(one.layers[0].homes):
            used = Counter(row[expert] for row in table)
            assert used == {home.at: home.weight for home in homes if home.weight}
