"""A shell moves experts: by load, or by an operator's command; a loss or another shell ends that cleanly."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from serving.group.core.group_experts import STUCK_S
from serving.group.live.group_port import Follow
from serving.values.expert_map import ExpertMap, LoadExpert, MovesEnded, SwitchMap
from serving.values.group import MoveOneExpert, OperatorOrder, OrderAnswer, PostedOrder, ReadLoad, RebalanceExperts
from tests.fakes.rank_group import FakeRank
from tests.live.group_scene import Scene

pytestmark = pytest.mark.asyncio

HOT = (90, 10, 10, 10)
"""Rows of each expert in half a second."""
NEVER_S = 1e9


async def pass_time(scene: Scene, seconds: float, rows: Sequence[int] = HOT) -> None:
    """Advance the time while ranks have these rows."""
    for _ in range(int(seconds * 2)):
        for rank in scene.world.ranks.values():
            rank.rows = (tuple(map(sum, zip(rank.rows[0], rows, strict=True))),)
        scene.clock.seconds += 0.5
        await asyncio.sleep(0.004)


async def ordered(scene: Scene, rank: FakeRank, order: OperatorOrder) -> OrderAnswer:
    """Response to an operator's command."""
    posted = PostedOrder(str(len(rank.answers)), order)
    rank.orders.append(posted)
    await scene.until(lambda: posted.id in rank.answers)
    return rank.answers[posted.id]


def newest(rank: FakeRank) -> ExpertMap:
    assert rank.map is not None
    return rank.map


def well(scene: Scene, group: str) -> None:
    """Whether every rank has the same map, and all its own slots that the map names hold their expert."""
    ranks = scene.world.of(group)
    (one,) = {newest(rank).version: newest(rank) for rank in ranks}.values()
    one.check()
    for rank in ranks:
        held = rank.held[0]
        for expert, homes in enumerate(one.layers[0].homes):
            own = [home.at.slot for home in homes if home.at.rank == rank.name.rank]
            assert all(held[slot] == expert if slot < len(held) else slot - len(held) == expert for slot in own)


def outcomes(rank: FakeRank) -> list[str]:
    return [one["outcome"] for one in rank.shown.get("rebalances", ())]


async def test_a_hot_expert_gets_a_copy_and_its_tokens_are_shared() -> None:
    scene = Scene(silence_s=NEVER_S)
    shell = await scene.formed("abc")
    ranks = scene.world.of("decode#abc")
    await pass_time(scene, 30.0)
    await scene.until(lambda: all(outcomes(rank) for rank in ranks))
    assert len(newest(ranks[1]).layers[0].homes[0]) == 2
    assert outcomes(ranks[0])[-1] == "done"
    first = ranks[0].shown["rebalances"][-1]
    assert (first["reason"], first["policy"], first["layers"]) == ("load", "time_sliced", [0])
    assert first["gain"] > 0.05
    assert {(one["layer"], one["expert"], one["to"]) for one in ranks[0].shown["moves"]} >= {(0, 0, 1)}
    well(scene, "decode#abc")
    moved = newest(ranks[0]).version
    await pass_time(scene, 30.0)
    assert newest(ranks[0]).version == moved, "once that has been done nothing is to be gained"
    await scene.close(shell)


async def test_without_a_policy_experts_stay_where_they_are() -> None:
    scene = Scene(silence_s=NEVER_S)
    scene.rules = type(scene.rules)(policy="none")
    shell = await scene.formed("abc")
    (rank, _) = scene.world.of("decode#abc")
    await pass_time(scene, 30.0)
    assert newest(rank).version == 1
    refused = await ordered(scene, rank, RebalanceExperts())
    assert (refused.accepted, "--policy" in refused.reason) == (False, True)
    assert (await ordered(scene, rank, RebalanceExperts("time_sliced"))).accepted
    await scene.until(lambda: outcomes(rank) == ["done"])
    assert newest(rank).version > 1
    await scene.close(shell)


async def test_an_operator_moves_an_expert() -> None:
    scene = Scene(silence_s=NEVER_S)
    shell = await scene.formed("abc")
    rank, other = scene.world.of("decode#abc")
    answer = await ordered(scene, rank, MoveOneExpert(0, 1, 1))
    assert answer.accepted
    assert answer.detail["layers"][0]["moves"] == [{"expert": 1, "from": 0, "to": 1, "slot": 2}]
    await scene.until(lambda: outcomes(rank) == ["done"])
    assert other.held == [[2, 3, 1]]
    assert rank.shown["moves"][0]["reason"] == "operator"
    assert rank.shown["moved"] == 1
    assert {home.at.rank for home in newest(rank).layers[0].homes[1]} == {0, 1}
    well(scene, "decode#abc")
    await scene.close(shell)


@pytest.mark.parametrize(
    ("order", "unknown", "why"),
    [
        (MoveOneExpert(3, 0, 1), True, "layers 0 to 0"),
        (MoveOneExpert(0, 4, 1), True, "experts 0 to 3"),
        (MoveOneExpert(0, 0, 2), True, "holds no experts"),
        (MoveOneExpert(0, 2, 1), False, "holds expert 2 of layer 0 already"),
        (RebalanceExperts("random"), True, "no policy 'random'"),
    ],
)
async def test_what_cannot_be_is_refused(order: OperatorOrder, unknown: bool, why: str) -> None:
    scene = Scene(silence_s=NEVER_S)
    shell = await scene.formed("abc")
    refused = await ordered(scene, scene.world.of("decode#abc")[0], order)
    assert (refused.accepted, refused.unknown) == (False, unknown)
    assert why in refused.reason
    await scene.close(shell)


async def test_rows_are_told_by_slice_and_source_rank() -> None:
    scene = Scene(silence_s=NEVER_S)
    scene.rules = type(scene.rules)(policy="none", window_s=10.0, slices=5)
    shell = await scene.formed("abc")
    rank, _ = scene.world.of("decode#abc")
    await pass_time(scene, 2.0)
    first = await ordered(scene, rank, ReadLoad())
    assert (first.accepted, first.detail["slices"]) == (True, [])
    assert [first.detail[name] for name in ("layers", "experts", "slice_s")] == [1, 4, 2.0]
    await pass_time(scene, 7.0)
    rest = (await ordered(scene, rank, ReadLoad(first.detail["last"]))).detail
    assert rest["last"] == first.detail["last"] + 3
    assert {one["rank"] for one in rest["slices"]} == {0, 1}
    assert 2 <= len({one["at_s"] for one in rest["slices"]}) <= 3, "a count may be late on a busy machine"
    for one in rest["slices"]:
        hot, *others = one["rows"][0]
        assert others == [hot / 9] * 3
    await scene.close(shell)


async def test_a_dry_run_says_what_would_be_done() -> None:
    scene = Scene(silence_s=NEVER_S)
    shell = await scene.formed("abc")
    rank = scene.world.of("decode#abc")[0]
    nothing = await ordered(scene, rank, RebalanceExperts(dry_run=True))
    assert (nothing.accepted, nothing.detail["moves"]) == (True, 0)
    answer = await ordered(scene, rank, RebalanceExperts("global", dry_run=True))
    assert answer.accepted
    assert answer.detail["moves"] > 0
    assert newest(rank).version == 1
    await scene.close(shell)


async def test_a_rank_that_is_lost_amid_a_move_ends_it() -> None:
    scene = Scene(3, NEVER_S)
    shell = await scene.formed("abc")
    lost, rank, stuck = scene.world.of("decode#abc")
    stuck.loads = False
    assert (await ordered(scene, rank, MoveOneExpert(0, 2, 2))).accepted
    await scene.until(lambda: any(isinstance(one, LoadExpert) for one in stuck.asked))
    busy = await ordered(scene, rank, MoveOneExpert(0, 0, 1))
    assert "experts are being moved" in busy.reason
    scene.world.lose(lost.name)
    await scene.until(lambda: scene.serving("decode#abc"))
    await scene.until(lambda: outcomes(rank) == ["undone"])
    assert "members have changed" in rank.shown["rebalances"][0]["problem"]
    assert rank.shown["losses"] == {"dead": 1}
    orders = [call.order for call in rank.calls if isinstance(call, Follow)]
    assert [order.version for order in orders] == sorted(order.version for order in orders)
    for order in orders[2:]:
        assert order.map.placement(0)[2][2] is None, "who knows what lies there"
    assert any(isinstance(one, MovesEnded) for one in stuck.asked)
    stuck.loads = True
    await scene.until(lambda: scene.world.of("decode#abc")[0].map is not None)
    answer = await ordered(scene, rank, MoveOneExpert(0, 2, 2))
    assert answer.accepted, answer.reason
    await scene.until(lambda: outcomes(rank)[0] == "done")
    well(scene, "decode#abc")
    await scene.close(shell)


async def test_the_next_shell_learns_what_lies_where() -> None:
    def asked_and_done(scene: Scene, rank: FakeRank) -> bool:
        if not rank.orders and "after" not in rank.answers:
            rank.orders = [PostedOrder("after", MoveOneExpert(0, 2, 0))]
        if "after" in rank.answers and not rank.answers["after"].accepted:
            del rank.answers["after"]  # too early
        return outcomes(rank)[:1] == ["done"]

    scene = Scene(silence_s=NEVER_S)
    await scene.formed("abc")
    rank, other = scene.world.of("decode#abc")
    other.loads = False
    await ordered(scene, rank, MoveOneExpert(0, 1, 1))
    await scene.until(lambda: any(isinstance(one, LoadExpert) for one in other.asked))
    await scene.killed("abc")
    other.loads, other.held = True, [[2, 3, 1]]  # it was loaded after all, without a report
    before, begun = newest(rank).version, len(rank.calls)
    shell = await scene.formed("xyz")
    await scene.until(lambda: newest(rank).version > before)
    assert len(rank.calls) == begun, "no other epoch"
    assert any(isinstance(one, SwitchMap) and one.map.version > before for one in rank.asked)
    assert {home.at.rank for home in newest(rank).layers[0].homes[1]} == {0, 1}
    await scene.until(partial(asked_and_done, scene, rank))
    well(scene, "decode#abc")
    await scene.close(shell)


async def test_moves_that_do_not_end_are_undone_and_then_the_group_begins_another_epoch() -> None:
    scene = Scene(silence_s=NEVER_S)
    shell = await scene.formed("abc")
    rank, other = scene.world.of("decode#abc")
    other.loads = False
    assert (await ordered(scene, rank, MoveOneExpert(0, 1, 1))).accepted
    await scene.until(lambda: any(isinstance(one, LoadExpert) for one in other.asked))
    scene.clock.seconds += 121.0
    await scene.until(lambda: outcomes(rank) == ["undone"])
    assert rank.shown["rebalances"][0]["problem"] == "deadline"
    well(scene, "decode#abc")
    other.loads, other.switches, done = True, False, len(other.asked)
    assert (await ordered(scene, rank, MoveOneExpert(0, 0, 1))).accepted
    await scene.until(lambda: any(isinstance(one, SwitchMap) for one in other.asked[done:]))
    scene.clock.seconds += 121.0 + STUCK_S
    await scene.until(lambda: rank.raised == 2)
    await scene.until(lambda: scene.serving("decode#abc"))
    well(scene, "decode#abc")
    await scene.close(shell)
