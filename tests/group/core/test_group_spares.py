"""Spares wait until a rank is lost, drains, or is to be added."""

from serving.group.core.group_course import Dismiss, Kill, Make, Regroup
from serving.group.core.group_sides import GroupSizes, RankSnapshot
from serving.values.group import RankPhase
from tests.group.core.group_sights import SILENCE_S, drain_refusal, first_order, mend, report, sights, waiting_spares


def test_spares_start_when_the_group_is_whole() -> None:
    serving = sights(RankPhase.SERVING, RankPhase.SERVING)
    assert mend(serving, 2, SILENCE_S, spares=2) == [Make(2)]
    assert mend({0: serving[0], 1: RankSnapshot()}, 2, SILENCE_S, spares=1)[1:] == [], "a rank first"
    offered = {2: RankSnapshot(report=report(2, RankPhase.OFFERED, 2))}
    assert mend(serving | offered, 2, SILENCE_S, spares=2) == [Make(3)]
    assert mend(serving | offered, 2, SILENCE_S, spares=1) == []
    assert waiting_spares(serving | offered, 2, 1) == [2]
    assert waiting_spares(serving | offered, 2, 0) == waiting_spares({0: serving[0]} | offered, 2, 1) == []
    assert mend(serving | offered, 2, SILENCE_S) == [Dismiss(2)], "without spares it is one too many"


def test_a_spare_joins_as_soon_as_a_rank_is_lost() -> None:
    group = sights(RankPhase.SERVING, RankPhase.SERVING) | {2: RankSnapshot(report=report(2, RankPhase.OFFERED, 2))}
    kill, due = mend(group | {1: RankSnapshot(dead=True, report=group[1].report)}, 2, SILENCE_S, spares=1)
    assert kill == Kill(1, "has ended")
    assert isinstance(due, Regroup)
    assert [offer.rank for offer in due.members] == [0, 2]
    joined = {0: group[0], 2: RankSnapshot(report=report(2, RankPhase.SERVING, 2))}
    assert mend(joined, 2, SILENCE_S, spares=1)[-1] == Make(1), "the next spare"


def test_a_spare_joins_a_group_that_grows_or_has_a_rank_that_drains() -> None:
    group = sights(RankPhase.SERVING, RankPhase.SERVING) | {2: RankSnapshot(report=report(2, RankPhase.OFFERED, 2))}
    due, more = mend(group, 3, SILENCE_S, former=2, spares=1)
    assert isinstance(due, Regroup)
    assert [offer.rank for offer in due.members] == [0, 1, 2]
    assert more == Make(3)
    drains = group | {1: RankSnapshot(report=report(1, RankPhase.LEAVING, 1, first_order(2), 1))}
    (due,) = mend(drains, 2, SILENCE_S, spares=1)
    assert isinstance(due, Regroup)
    assert [offer.rank for offer in due.members] == [0, 1, 2]
    assert "spare" in drain_refusal(group, 2, 2, spares=1)
    assert drain_refusal(group, 2, 1, spares=1) == ""
    assert drain_refusal(group, 2, 3, spares=1) == "there is no rank 3: the group's are 0 to 2"


def test_a_group_has_no_more_spares_than_its_windows_have_room_for() -> None:
    assert [GroupSizes(2, 4, spares=3).spares_of(size) for size in (0, 1, 2, 3, 4)] == [0, 3, 2, 1, 0]
