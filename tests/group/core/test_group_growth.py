"""A group that cannot grow returns to its former state."""

import pytest

from serving.group.core.group_growth import MOST_TRIES, GroupGrowth, former_size, given_up, grown, resized, switched
from serving.group.core.group_sides import GroupSide, GroupSizes
from serving.values.group import RankLease, RankRole


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
    side = GroupSide(4, former=2)
    growth = GroupGrowth([side], {0: 9, 1: 1, 2: 5})
    assert growth.hopeless({0: 99, 1: 99, 2: 5 + MOST_TRIES, 3: MOST_TRIES}) is None
    assert growth.hopeless({0: 9, 1: 1, 2: 6 + MOST_TRIES}) == side
    assert growth.hopeless({3: 1 + MOST_TRIES}) == side
    assert "4 ranks: the new ones cannot be built, see their logs. It keeps 2" in given_up("decode#abc", side)
    assert GroupGrowth([GroupSide(4)]).hopeless({0: 99}) is None, "it does not grow"


def test_a_role_switch_is_one_change_of_both_sides() -> None:
    sizes = [GroupSizes(2, 8, role=RankRole.ATTENTION), GroupSizes(2, 8, role=RankRole.EXPERTS)]
    lease = switched(RankLease("s", 1, 5, 2, expert_size=2), RankRole.EXPERTS)
    attention, experts = [one.side(lease) for one in sizes]
    assert (attention, experts) == (
        GroupSide(1, end=8, role=RankRole.ATTENTION),
        GroupSide(3, 2, first=8, end=16, role=RankRole.EXPERTS),
    )
    assert lease.term > 5
    assert list(experts.new) == [10]
    assert grown(lease, {}, [attention, experts]) == lease, "it is not there yet"
    assert resized(lease, RankRole.EXPERTS, 2).of(RankRole.EXPERTS) == (2, 0)
