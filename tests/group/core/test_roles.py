"""Groups of attention ranks and expert ranks: each side is made whole by itself, experts stay on expert ranks."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from serving.errors import GroupError, PlacementError
from serving.group.core.group_course import BeginDrain, GroupOrder, Kill, Make, Regroup, mend_sides
from serving.group.core.group_experts import ExpertRules, GroupExperts
from serving.group.core.group_growth import switched
from serving.group.core.group_map import contents_of, opening_map
from serving.group.core.group_sides import (
    GroupSide,
    GroupSizes,
    RankSnapshot,
    drain_refusal,
    resize_refusal,
    switch_refusal,
    whole_sides,
)
from serving.group.core.rank_life import check_offers
from serving.values.expert_map import (
    FetchExpert,
    GateRule,
    LoadExpert,
    MapSwitched,
    MoveFetched,
    MoveLoaded,
    RowsCounted,
    SwitchMap,
)
from serving.values.group import MoveOneExpert, RankLease, RankOffer, RankPhase, RankRole
from tests.fakes.rank_group import ordered
from tests.group.core.group_sights import SILENCE_S, report

ATTENTION = GroupSide(2, end=4, role=RankRole.ATTENTION)
EXPERTS = GroupSide(2, first=4, end=8, role=RankRole.EXPERTS)
MEMBERS = (0, 1, 4, 5)
SERVING, OFFERED = RankPhase.SERVING, RankPhase.OFFERED
Ranks = dict[int, RankSnapshot]


def role_of(rank: int) -> RankRole:
    return RankRole.ATTENTION if rank < 4 else RankRole.EXPERTS


def serving(*members: int, epoch: int = 1, raised: int | None = None) -> Ranks:
    order = ordered(epoch, epoch, tuple(RankOffer(rank, rank, "", "x", role=role_of(rank)) for rank in members))
    return {
        rank: RankSnapshot(report=report(rank, SERVING, rank, order, raised or epoch, role=role_of(rank)))
        for rank in members
    }


def offered(rank: int) -> Ranks:
    return {rank: RankSnapshot(report=report(rank, OFFERED, rank, role=role_of(rank)))}


def mended(ranks: Ranks, attention: GroupSide = ATTENTION, experts: GroupSide = EXPERTS) -> list[GroupOrder]:
    return mend_sides(ranks, [attention, experts], SILENCE_S)


def epoch_of(orders: list[GroupOrder]) -> int:
    (order,) = [one for one in orders if isinstance(one, Regroup)]
    return order.epoch


def lacks_rank(orders: list[GroupOrder]) -> bool:
    (order,) = [one for one in orders if isinstance(one, Regroup)]
    return order.lacks_rank


def members(orders: list[GroupOrder]) -> list[int]:
    (order,) = [one for one in orders if isinstance(one, Regroup)]
    return [one.rank for one in order.members]


def test_a_group_forms_once_both_sides_have_offered() -> None:
    assert mended({}) == [Make(rank) for rank in MEMBERS]
    there = {rank: one for each in map(offered, MEMBERS) for rank, one in each.items()}
    assert members(mended(there)) == list(MEMBERS)
    del there[5]
    assert mended(there) == [Make(5)]
    assert mended(serving(*MEMBERS)) == []
    assert whole_sides(serving(*MEMBERS), [ATTENTION, EXPERTS])


@pytest.mark.parametrize("lost", [1, 4])
def test_a_lost_rank_of_either_side_is_replaced_under_its_number(lost: int) -> None:
    others = [rank for rank in MEMBERS if rank != lost]
    orders = mended(serving(*MEMBERS) | {lost: RankSnapshot(dead=True)})
    assert orders[0] == Kill(lost, "has ended")
    assert members(orders) == others
    assert lacks_rank(orders) == (lost == 4)
    epoch = 1 if lost == 1 else 2
    assert epoch_of(orders) == epoch, "without one of the attention ranks the others go on as they are"
    assert mended(serving(*others, epoch=epoch)) == [Make(lost)]
    back = mended(serving(*others, epoch=epoch) | offered(lost))
    assert members(back) == list(MEMBERS)
    assert not lacks_rank(back)
    assert epoch_of(back) == (1 if lost == 1 else 3)


def test_an_attention_rank_is_lost_with_an_expert_rank() -> None:
    orders = mended(serving(*MEMBERS) | {rank: RankSnapshot(dead=True) for rank in (1, 4)})
    assert (members(orders), epoch_of(orders)) == ([0, 5], 2)


def test_an_order_that_only_some_have_received() -> None:
    """An order of the present epoch is sent again; one of another epoch is followed by a new one."""
    some = serving(0, 4, 5) | {0: serving(*MEMBERS)[0]}
    assert epoch_of(mended(some, attention=GroupSide(1, end=4))) == 1
    told = serving(0, 4, 5, epoch=2, raised=1)
    assert epoch_of(mended(told | {0: serving(0, 4, 5)[0]}, attention=GroupSide(1, end=4))) == 3


def test_a_side_without_ranks_waits_for_one() -> None:
    left = serving(*MEMBERS) | {rank: RankSnapshot(dead=True) for rank in (4, 5)}
    assert mended(left) == [Kill(4, "has ended"), Kill(5, "has ended")], "no epoch without experts"
    attention = {rank: one for rank, one in left.items() if rank < 4}
    assert mended(attention) == [Make(4), Make(5)]
    assert members(mended(attention | offered(4))) == [0, 1, 4], "the first one that is there is enough"


def test_one_side_is_resized_and_the_other_stays() -> None:
    grows = replace(EXPERTS, size=3, former=2)
    assert mended(serving(*MEMBERS), experts=grows) == [Make(6)]
    assert members(mended(serving(*MEMBERS) | offered(6), experts=grows)) == [*MEMBERS, 6]
    assert mended(serving(*MEMBERS), attention=replace(ATTENTION, size=1)) == [BeginDrain(1)]
    sizes = GroupSizes(2, 9, role=RankRole.EXPERTS)
    assert "5 expert ranks, but a layer has 4 experts" in resize_refusal(5, sizes, 4)
    assert resize_refusal(5, replace(sizes, role=RankRole.ATTENTION), 4) == ""


def test_which_ranks_can_change_their_role() -> None:
    there, sides = serving(*MEMBERS), [ATTENTION, EXPERTS]
    assert switch_refusal(there, sides, 1, RankRole.EXPERTS) == ""
    assert switch_refusal(there, sides, 5, RankRole.ATTENTION) == ""
    assert "not the last attention rank: switch rank 1" in switch_refusal(there, sides, 0, RankRole.EXPERTS)
    assert "is an expert rank already" in switch_refusal(there, sides, 5, RankRole.EXPERTS)
    assert "there is no rank 3" in switch_refusal(there, sides, 3, RankRole.EXPERTS)
    assert "not whole" in switch_refusal(serving(0, 1, 4), sides, 1, RankRole.EXPERTS)
    assert "both roles" in switch_refusal(there, [GroupSide(6)], 1, RankRole.EXPERTS)
    one = [replace(ATTENTION, size=1), EXPERTS]
    assert "the only attention rank" in switch_refusal(serving(0, 4, 5), one, 0, RankRole.EXPERTS)
    assert "the only attention rank" in drain_refusal(serving(0, 4, 5), one, 0)
    assert drain_refusal(serving(0, 4, 5), one, 5) == ""
    assert drain_refusal(there, sides, 2) == "there is no rank 2: the group's are 0 to 1 and 4 to 5"


def test_a_role_switch_drains_one_rank_and_starts_another() -> None:
    sizes = [GroupSizes(2, 4, role=RankRole.ATTENTION), GroupSizes(2, 4, role=RankRole.EXPERTS)]
    lease = switched(RankLease("s", 1, 1, 2, expert_size=2), RankRole.EXPERTS)
    attention, experts = (one.side(lease) for one in sizes)
    assert mended(serving(*MEMBERS), attention, experts) == [BeginDrain(1), Make(6, gently=True)]


def test_a_spare_of_a_side_takes_the_place_of_its_lost_rank_alone() -> None:
    spare = replace(EXPERTS, spares=1)
    there = serving(*MEMBERS) | offered(6)
    assert mended(there, experts=spare) == []
    assert members(mended(there | {4: RankSnapshot(dead=True)}, experts=spare)) == [0, 1, 5, 6]
    assert members(mended(there | {1: RankSnapshot(dead=True)}, experts=spare)) == [0, 4, 5]


# ---- experts ---------------------------------------------------------------------------------------------------------

LAYERS, COUNT = 2, 8


def offers(*ranks: int, redundant: int = 1) -> list[RankOffer]:
    opening = opening_map(COUNT, 6, redundant, LAYERS, holders=(4, 5))
    roles = {rank: RankRole.ATTENTION if rank < 4 else RankRole.EXPERTS for rank in ranks}
    return [
        RankOffer(rank, rank + 1, "", "x", experts=COUNT, expert_bytes=1, held=contents_of(opening, rank), role=role)
        for rank, role in roles.items()
    ]


def grouped(*ranks: int) -> GroupExperts:
    core = GroupExperts(ExpertRules(window_s=5.0, slices=5, bytes_per_s=1e9))
    core.regroup(offers(*ranks), 6, 1, 0.0)
    return core


def test_experts_stay_on_ranks_with_experts() -> None:
    core = grouped(*MEMBERS)
    assert core.ledger is not None
    assert [bool(count) for count in core.ledger.map.slots] == [False] * 4 + [True] * 2
    core.confirm(dict.fromkeys(MEMBERS, core.ledger.map.version), 0.0)
    homes = core.ledger.map.layers[0].homes
    hot = {expert for expert, own in enumerate(homes) if [home.at.rank for home in own] == [4]}
    assert len(hot) > 1
    rows = [[0] * COUNT for _ in range(LAYERS)]
    plan = None
    for second in range(12):
        for row in rows:
            row[:] = [count + 1000 * (expert in hot) + 10 for expert, count in enumerate(row)]
        assert core.count_due(second)
        for rank in (0, 1):  # gates count
            core.on(rank, rank + 1, RowsCounted(rank, tuple(map(tuple, rows))), second)
        plan = plan or core.plan(second)
    assert plan is not None
    effects = core.begin(plan, core.ledger.map.version, "load", "time_sliced", 12.0)
    moves = [move for layer in plan.layers for one in layer.rounds for move in one.moves]
    assert moves
    assert {move.to.rank for move in moves} <= {4, 5}
    assert all(one.move.to.rank in (4, 5) for one in effects if isinstance(one, FetchExpert))


def test_a_lost_attention_rank_leaves_experts_where_they_are() -> None:
    core = grouped(*MEMBERS)
    assert core.ledger is not None
    before = core.ledger.map
    after = core.regroup(offers(0, 4, 5), 6, 2, 1.0)
    assert (after.slots, after.layers) == (before.slots, before.layers)


def test_an_attention_rank_joins_and_leaves_amid_a_switch_of_maps() -> None:
    """A map that is being switched to waits for no rank that has left, nor for one that has started with it."""
    core = grouped(*MEMBERS)
    assert core.ledger is not None
    core.confirm(dict.fromkeys(MEMBERS, core.ledger.map.version), 0.0)
    homes = core.ledger.map.layers[0].homes
    order = MoveOneExpert(0, next(expert for expert, own in enumerate(homes) if own[0].at.rank == 5), 4)
    plan = core.plan_order(order, 0.0)
    _, effects = core.begin_order(order, plan, core.ledger.map.version, 0.0)
    (fetch,) = effects
    assert isinstance(fetch, FetchExpert)
    effects = core.on(4, 5, MoveFetched(fetch.move), 0.0)
    while not isinstance(effects[0], SwitchMap):
        assert isinstance(effects[0], LoadExpert)
        effects = core.on(4, 5, MoveLoaded(fetch.move), 0.0)
    (switch,) = effects
    assert isinstance(switch, SwitchMap)
    assert core.newest == switch.map
    for rank in (0, 4, 5):
        assert core.on(rank, rank + 1, MapSwitched(switch.map.version), 0.0) == []
    joined = [*offers(0, 4, 5), msgspec.structs.replace(offers(1)[0], pid=77)]
    assert core.ledger.map != switch.map
    assert core.admit(joined, switch.map.version, 0.0), "rank 1 is another process, which started with the map"
    assert core.ledger.map == switch.map


def test_a_lost_expert_rank_leaves_all_experts_with_the_other_one() -> None:
    core = grouped(*MEMBERS)
    after = core.regroup(offers(0, 1, 5), 6, 2, 1.0)
    assert {home.at.rank for layer in after.layers for homes in layer.homes for home in homes} == {5}
    with pytest.raises(PlacementError, match="none of 2 members holds experts"):
        core.regroup(offers(0, 1), 6, 3, 2.0)
    with pytest.raises(PlacementError, match="no rank of the group holds experts"):
        opening_map(COUNT, 6, 0, LAYERS, holders=())
    with pytest.raises(PlacementError, match="expert_ranks = 2, but a layer of this model has 1 experts"):
        opening_map(1, 6, 0, LAYERS, holders=(4, 5))


def masking(redundant: int, top_k: int) -> GroupExperts:
    """A group whose rules mask lost experts. Args: top_k: of its gates."""
    core = GroupExperts(ExpertRules(masks=True))
    core.regroup(gated(MEMBERS, redundant, top_k), 6, 1, 0.0)
    return core


def gated(ranks: Sequence[int], redundant: int = 0, top_k: int = 2) -> list[RankOffer]:
    return [msgspec.structs.replace(one, gate=GateRule(top_k)) for one in offers(*ranks, redundant=redundant)]


def test_lost_experts_without_a_copy_are_masked_until_the_rank_is_replaced() -> None:
    core = masking(redundant=1, top_k=2)
    lost = core.regroup(gated((0, 1, 5), 1), 6, 2, 1.0, lacks_rank=True)
    lost.check()
    assert (lost.masked_count, core.mask_refused) == (LAYERS * 3, ""), "of eight experts rank 5 has five"
    assert {home.at.rank for layer in lost.layers for homes in layer.homes for home in homes} == {5}
    again = core.regroup(gated((1, 5), 1), 6, 3, 2.0, lacks_rank=True)
    assert again.layers == lost.layers
    returned = [msgspec.structs.replace(one, pid=70) if one.rank == 4 else one for one in gated(MEMBERS, 1)]
    assert core.regroup(returned, 6, 4, 3.0).masked_count == 0


def test_experts_in_a_reserve_are_not_masked_by_a_later_loss() -> None:
    """Rank 4 drains: its experts go into rank 5's reserve, where they stay while its replacement is missing."""
    core = masking(redundant=0, top_k=2)
    drained = core.regroup(gated((0, 1, 5)), 6, 2, 1.0)
    assert drained.masked_count == 0
    assert core.regroup(gated((0, 5)), 6, 3, 2.0, lacks_rank=True).layers == drained.layers
    other = [msgspec.structs.replace(one, pid=70) for one in gated((0, 5))]
    assert core.regroup(other, 6, 4, 3.0, lacks_rank=True).masked_count == LAYERS * 4, "a new process has no reserve"


@pytest.mark.parametrize(("top_k", "masked"), [(4, LAYERS * 4), (5, 0), (0, 0)])
def test_a_mask_that_leaves_too_few_experts_is_refused(top_k: int, masked: int) -> None:
    core = masking(redundant=0, top_k=top_k)
    found = core.regroup(gated((0, 5), 0, top_k), 6, 2, 1.0, lacks_rank=True)
    assert found.masked_count == masked
    assert core.mask_refused == ("" if masked else "layer 0 would keep 4 of 8 experts, too few to choose from")
    assert core.regroup(gated(MEMBERS, 0, top_k), 6, 3, 2.0).masked_count == 0
    assert core.mask_refused == ""


@pytest.mark.parametrize(
    ("gate", "masked", "allowed"),
    [
        (GateRule(2, groups=4, kept=2), {0, 1, 2}, True),  # group 0 is never chosen, of group 1 one expert is left
        (GateRule(2, groups=4, kept=2, best=2), {0, 1, 2}, True),
        (GateRule(3, groups=4, kept=2), {0, 1, 2, 4}, False),  # groups 1 and 2 have one expert each
        (GateRule(4, groups=4, kept=2, best=2), {0, 2, 4}, False),  # only group 3 has two
        (GateRule(2, groups=4, kept=1), {0}, False),  # if its other one is the best of all
        (GateRule(2, groups=4, kept=1, best=2), {0}, True),
    ],
)
def test_groups_of_a_gate_need_enough_experts(gate: GateRule, masked: set[int], allowed: bool) -> None:
    assert gate.may_mask(masked, COUNT) is allowed


def test_ranks_refuse_a_group_that_lacks_a_role() -> None:
    own, *_ = all_of = [msgspec.structs.replace(one, experts=0, held=()) for one in offers(*MEMBERS)]
    check_offers(own, 6, all_of)
    with pytest.raises(GroupError, match=r"ranks \[0, 1\] have no experts"):
        check_offers(own, 6, all_of[:2])
    with pytest.raises(GroupError, match=r"ranks \[4, 5\] have no attention"):
        check_offers(all_of[2], 6, all_of[2:])
