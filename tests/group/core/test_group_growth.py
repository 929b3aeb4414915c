"""A group that cannot grow returns to its former state."""

import pytest

from serving.group.core.group_growth import MOST_TRIES, GroupGrowth, former_size


@pytest.mark.parametrize(
    ("before", "former", "size", "wanted"),
    [
        (2, 0, 4, 2),
        (4, 2, 6, 2),  # it has never had 4
        (4, 2, 3, 2),
        (4, 2, 2, 0),
        (4, 0, 2, 0),
        (2, 0, 0, 0),
    ],
)
def test_what_it_falls_back_to(before: int, former: int, size: int, wanted: int) -> None:
    assert former_size(before, former, size) == wanted


def test_only_newcomers_end_it() -> None:
    growth = GroupGrowth(2, {0: 9, 1: 1, 2: 5})
    assert growth
    assert [growth.is_new(rank) for rank in range(4)] == [False, False, True, True]
    assert not growth.hopeless({0: 99, 1: 99, 2: 5 + MOST_TRIES, 3: MOST_TRIES})
    assert growth.hopeless({0: 9, 1: 1, 2: 6 + MOST_TRIES})
    assert growth.hopeless({3: 1 + MOST_TRIES})
    assert "keeps 2" in growth.given_up("decode#abc", 4)


def test_a_group_that_does_not_grow() -> None:
    growth = GroupGrowth()
    assert not growth
    assert not growth.is_new(0)
    assert not growth.hopeless({0: 99})
