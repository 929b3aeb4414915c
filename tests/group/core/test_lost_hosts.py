"""Ranks on several nodes: which end of an ended connection is lost, and whether the others wait for its end."""

from collections.abc import Mapping

import pytest

from serving.group.core.group_course import UNHEARD_S, Kill, mend_sides
from serving.group.core.group_sides import GroupSide, RankSnapshot
from serving.values.group import LossKind, RankLease, RankOffer, RankPhase, RankReport, RankRole
from tests.group.core.group_sights import SILENCE_S

FIRST_EXPERT = 8
LEASE = RankLease("abc", 1, 1)


def group(
    nodes: Mapping[int, str], reported: Mapping[int, tuple[int, ...]], unheard: str = "", *, roles: bool = True
) -> dict[int, RankSnapshot]:
    """Serving ranks by node, and whom each reports. `unheard`: node whose ranks do not answer the shell."""
    found = {}
    for rank, node in nodes.items():
        role = RankRole.EXPERTS if rank >= FIRST_EXPERT else RankRole.ATTENTION if roles else RankRole.BOTH
        offer, silent_s = RankOffer(rank, rank, "", "x", role=role, node=node), UNHEARD_S if node == unheard else 0.1
        report = RankReport(
            LEASE, RankPhase.SERVING, rank, node, offer, tuple(nodes), 1, 1, 1,
            experts=tuple(one for one in nodes if one >= FIRST_EXPERT or not roles),
            unreachable=reported.get(rank, ()),
        )  # fmt: skip
        found[rank] = RankSnapshot(silent_s=silent_s, report=report)
    return found


def killed(ranks: Mapping[int, RankSnapshot], *, roles: bool = True) -> dict[int, bool]:
    """Ranks that are lost, and whether the others go on before their end is confirmed."""
    both = RankRole.ATTENTION if roles else RankRole.BOTH
    sides = [GroupSide(sum(rank < FIRST_EXPERT for rank in ranks), end=FIRST_EXPERT if roles else None, role=both)]
    if roles:
        sides.append(GroupSide(len(ranks) - sides[0].size, first=FIRST_EXPERT, role=RankRole.EXPERTS))
    kills = [order for order in mend_sides(ranks, sides, SILENCE_S) if isinstance(order, Kill)]
    assert all(order.kind is LossKind.UNREACHABLE for order in kills)
    return {order.rank: order.fenced for order in kills}


@pytest.mark.parametrize(("reports", "unheard"), [(0, "right"), (1, "left")])
def test_the_end_that_is_not_heard_is_lost(reports: int, unheard: str) -> None:
    nodes = {0: "left", 1: "right"}
    ranks = group(nodes, {reports: (1 - reports,)}, unheard, roles=False)
    assert killed(ranks, roles=False) == {1 - reports: True}


def test_of_two_nodes_that_are_heard_the_one_with_the_lowest_rank_goes_on() -> None:
    """Also with expert ranks on both, of which one stays."""
    assert killed(group({0: "left", 1: "right"}, {0: (1,), 1: (0,)}, roles=False), roles=False) == {1: True}
    nodes = {0: "left", 1: "right", 8: "left", 9: "right"}
    assert killed(group(nodes, {0: (9,), 1: (8,), 8: (1,), 9: (0,)})) == {1: True, 9: True}


def test_all_ranks_of_a_lost_node_are_lost_also_those_that_nobody_elsewhere_knows() -> None:
    nodes = {0: "left", 1: "right", 8: "right"}
    assert killed(group(nodes, {0: (8,)}, "right")) == {1: False, 8: True}
    assert killed(group(nodes, {0: (8,)})) == {8: False}, "rank 1 goes on, and shares its memory"


def test_a_rank_is_fenced_when_all_that_go_on_and_need_it_have_reported_it() -> None:
    nodes = {0: "left", 1: "middle", 8: "right", 9: "left"}
    assert killed(group(nodes, {0: (8,)}, "right")) == {8: False}
    assert killed(group(nodes, {0: (8,), 1: (8,)}, "right")) == {8: True}


def test_a_report_about_a_former_process_or_of_a_dead_rank_counts_for_nothing() -> None:
    ranks = group({0: "left", 1: "right"}, {0: (1,)}, "right", roles=False)
    first = ranks[0].report
    assert first is not None
    gone = RankSnapshot(dead=True, report=ranks[1].report)
    assert killed({**ranks, 0: RankSnapshot(silent_s=UNHEARD_S, report=first)}, roles=False) == {}
    orders = mend_sides({0: ranks[0], 1: gone}, [GroupSide(2)], SILENCE_S)
    assert [order.kind for order in orders if isinstance(order, Kill)] == [LossKind.DEAD]
    again = RankSnapshot(silent_s=UNHEARD_S, report=RankReport(LEASE, RankPhase.LOADING, 7, "right"))
    assert killed({0: ranks[0], 1: again}, roles=False) == {}
