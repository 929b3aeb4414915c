"""A shell gives its group more or fewer ranks, replaces one without a loss, and leaves unfinished work to the next
shell.
"""

from itertools import count

import pytest

from serving.group.core.group_growth import MOST_TRIES
from serving.group.core.rank_life import RankName
from serving.group.live.group_port import Begin, EndRank, QuitGroup
from serving.group.live.shell import SWEEP_PERIOD_S
from serving.values.group import (
    DrainRank,
    OrderAnswer,
    PostedOrder,
    RankPhase,
    RankRole,
    ResizeGroup,
    SizeOrder,
    SwitchRole,
)
from tests.live.group_scene import Scene

pytestmark = pytest.mark.asyncio

GROUP = "decode#abc"
IDS = count()


async def ordered(scene: Scene, order: SizeOrder, at: int = 0) -> OrderAnswer:
    """Post a command at a rank, and wait for the response."""
    posted = PostedOrder(f"order-{next(IDS)}", order)
    rank = scene.world.of(GROUP)[at]
    rank.orders.append(posted)
    await scene.until(lambda: posted.id in rank.answers)
    return rank.answers[posted.id]


def epochs(scene: Scene, rank: int) -> list[tuple[int, ...]]:
    """Members of the epochs that a rank has started."""
    return [call.order.members for call in scene.world.of(GROUP)[rank].calls if isinstance(call, Begin)]


async def test_two_four_two() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    first = scene.serving(GROUP)
    answer = await ordered(scene, ResizeGroup(4))
    assert (answer.accepted, answer.reason) == (True, f"{GROUP}: 2 -> 4 ranks")
    await scene.until(lambda: scene.serving(GROUP, 4))
    assert scene.serving(GROUP, 4)[:2] == first
    assert epochs(scene, 0) == [(0, 1), (0, 1, 2, 3)], "both newcomers join at once"
    assert scene.world.added == {(GROUP, 2), (GROUP, 3)}
    assert [rank.gently for rank in scene.world.of(GROUP)] == [False, False, True, True]
    await scene.until(lambda: not shell.lease.former)  # it is whole: a later loss is no growth
    gone = scene.world.of(GROUP)[2:]
    assert (await ordered(scene, ResizeGroup(2), at=3)).accepted
    await scene.until(lambda: scene.serving(GROUP) == first)
    for rank in gone:
        assert [type(call) for call in rank.calls[-2:]] == [QuitGroup, EndRank]
    await scene.until(lambda: not scene.world.added)  # their placements are released
    assert epochs(scene, 0)[-1] == (0, 1)
    await scene.close(shell)
    assert not scene.world.ranks


async def test_a_rank_with_streams_stays_a_member_until_they_have_gone() -> None:
    scene = Scene(ranks=3)
    shell = await scene.formed("abc")
    _, _, last = scene.world.of(GROUP)
    last.streams = True
    assert (await ordered(scene, ResizeGroup(1))).accepted
    await scene.until(lambda: last.life.phase is RankPhase.LEAVING)
    await scene.until(lambda: len(scene.world.of(GROUP)) == 2)
    assert [rank.name.rank for rank in scene.world.of(GROUP)] == [0, 2], "rank 1 had none"
    last.streams = False
    await scene.until(lambda: scene.serving(GROUP, 1))
    await scene.close(shell)


async def test_a_rank_that_drains_is_replaced() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    kept, drained = scene.serving(GROUP)
    assert (await ordered(scene, DrainRank(1))).accepted
    await scene.until(lambda: scene.serving(GROUP) and scene.serving(GROUP)[1] != drained)
    assert scene.serving(GROUP)[0] == kept
    assert epochs(scene, 0) == [(0, 1), (0,), (0, 1)]
    refused = await ordered(scene, DrainRank(7))
    assert (refused.accepted, refused.unknown) == (False, True)
    await scene.close(shell)


@pytest.mark.parametrize(
    ("room", "silent", "size", "kind", "text"),
    [
        (3, 0, 4, "no_room", f"4 ranks of {GROUP} do not fit on its node, 3 would"),
        (1, 0, 3, "no_room", "2 would"),
        (9, 0, 7, "invalid", "give 1 to 6"),
        (9, 0, 5, "invalid", "a layer has 4 experts"),
        (9, 1, 4, "unavailable", "Ray does not answer; try again"),
    ],
)
async def test_what_cannot_be_is_refused(room: int, silent: int, size: int, kind: str, text: str) -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    before = scene.serving(GROUP)
    scene.world.room_for, scene.world.silent_calls = room, silent
    answer = await ordered(scene, ResizeGroup(size))
    assert (answer.accepted, answer.detail["kind"]) == (False, kind)
    assert text in answer.reason
    assert shell.lease.size == 2
    assert scene.serving(GROUP) == before
    await scene.close(shell)


async def test_the_next_shell_goes_on_with_a_resize() -> None:
    scene = Scene(silence_s=2 * SWEEP_PERIOD_S)
    await scene.formed("abc")
    assert (await ordered(scene, ResizeGroup(4))).accepted
    await scene.killed("abc")
    await scene.formed("xyz")
    await scene.until(lambda: scene.serving(GROUP, 4))
    last = scene.world.of(GROUP)[3]
    last.streams = True
    assert (await ordered(scene, ResizeGroup(2))).accepted
    await scene.until(lambda: last.life.phase is RankPhase.LEAVING)
    await scene.killed("xyz")
    last.streams = False
    shell = await scene.formed("third")
    await scene.until(lambda: scene.serving(GROUP))
    scene.clock.seconds += SWEEP_PERIOD_S + 1  # a placement that the second did not live to release is swept
    await scene.until(lambda: not scene.world.added)
    assert shell.lease.term == 5, "three shells, two sizes"
    await scene.close(shell)


async def test_a_rank_that_dies_amid_a_resize_is_replaced_or_not_missed() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    assert (await ordered(scene, ResizeGroup(3))).accepted
    await scene.until(lambda: len(scene.world.of(GROUP)) == 3)
    scene.world.lose(scene.world.of(GROUP)[2].name)
    scene.world.lose(scene.world.of(GROUP)[1].name)
    await scene.until(lambda: scene.serving(GROUP, 3))
    last = scene.world.of(GROUP)[2]
    last.streams = True
    assert (await ordered(scene, ResizeGroup(2))).accepted
    await scene.until(lambda: last.life.phase is RankPhase.LEAVING)
    scene.world.lose(last.name)
    await scene.until(lambda: scene.serving(GROUP))
    await scene.until(lambda: not scene.world.added)
    await scene.close(shell)


async def test_a_group_whose_new_rank_cannot_be_built_keeps_its_size() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    scene.world.unbuildable_ranks = {2}
    assert (await ordered(scene, ResizeGroup(3))).accepted
    await scene.until(lambda: shell.lease.size == 2)
    await scene.until(lambda: scene.serving(GROUP))
    assert scene.world.made == 2 + MOST_TRIES + 1
    await scene.until(lambda: not scene.world.added)
    await scene.until(lambda: scene.world.of(GROUP)[0].shown.get("not_grown") == 1)
    await scene.close(shell)


async def test_the_next_shell_gives_a_growth_up_too() -> None:
    scene = Scene(silence_s=2 * SWEEP_PERIOD_S)
    first = await scene.formed("abc")
    serving = scene.serving(GROUP)
    scene.world.unbuildable_ranks = {2, 3}
    assert (await ordered(scene, ResizeGroup(4))).accepted
    await scene.until(lambda: first.lease.size == 4 and scene.world.made > 2)
    await scene.killed("abc")
    shell = await scene.formed("xyz")
    assert (shell.group, shell.lease.size) == (GROUP, 2), "it does not try for ever"
    assert scene.serving(GROUP) == serving
    scene.clock.seconds += SWEEP_PERIOD_S + 1
    await scene.until(lambda: not scene.world.added)
    await scene.until(lambda: scene.world.of(GROUP)[0].shown.get("not_grown") == 1)
    await scene.close(shell)


async def test_a_rank_that_does_not_stop_in_time_is_killed_before_the_others_go_on() -> None:
    scene = Scene(ranks=3)
    shell = await scene.formed("abc")
    last = scene.world.of(GROUP)[2]
    scene.world.silent_at_quit = True
    assert (await ordered(scene, ResizeGroup(2))).accepted
    await scene.until(lambda: scene.serving(GROUP, 2))
    assert last.name not in scene.world.ranks
    assert RankName(last.name.session, last.name.group, 2, 2) not in scene.world.ranks
    await scene.close(shell)


# Groups of attention ranks 0, 1 and expert ranks 6, 7.


async def test_attention_ranks_come_and_go_without_an_epoch() -> None:
    scene = Scene(experts=2)
    shell = await scene.formed("abc")
    assert scene.serving(GROUP)
    answer = await ordered(scene, ResizeGroup(3))
    assert answer.reason == f"{GROUP}: 2 -> 3 attention ranks, 2 -> 2 expert ranks"
    await scene.until(lambda: scene.serving(GROUP, 5))
    scene.world.lose(scene.world.of(GROUP)[0].name)
    await scene.until(lambda: len(scene.world.of(GROUP)) == 5 and scene.serving(GROUP, 5))
    assert (await ordered(scene, ResizeGroup(1))).accepted
    await scene.until(lambda: scene.serving(GROUP, 3))
    orders = [call.order for call in scene.world.of(GROUP)[-1].calls if isinstance(call, Begin)]
    assert [order.members for order in orders] == [
        (0, 1, 6, 7), (0, 1, 2, 6, 7), (1, 2, 6, 7), (0, 1, 2, 6, 7), *[one.members for one in orders[4:]]
    ]  # fmt: skip
    assert orders[-1].members == (0, 6, 7)
    assert {(order.epoch, order.map.version) for order in orders} == {(1, 1)}
    await scene.close(shell)
    assert not scene.world.ranks


async def test_a_lost_expert_rank_starts_an_epoch() -> None:
    scene = Scene(experts=2)
    shell = await scene.formed("abc")
    scene.world.lose(scene.world.of(GROUP)[3].name)
    await scene.until(lambda: len(scene.world.of(GROUP)) == 4 and scene.serving(GROUP))
    assert [call.order.epoch for call in scene.world.of(GROUP)[0].calls if isinstance(call, Begin)] == [1, 2, 3]
    await scene.until(lambda: scene.world.of(GROUP)[0].shown.get("losses") == {"dead": 1})
    await scene.close(shell)


async def test_a_rank_changes_its_role_and_the_next_shell_goes_on_with_it() -> None:
    scene = Scene(experts=1)
    await scene.formed("abc")
    last = scene.world.of(GROUP)[1]
    last.streams = True
    answer = await ordered(scene, SwitchRole(1, RankRole.EXPERTS))
    assert answer.reason == f"{GROUP}: 2 -> 1 attention ranks, 1 -> 2 expert ranks"
    refused = await ordered(scene, SwitchRole(0, RankRole.EXPERTS))
    assert not refused.accepted
    await scene.killed("abc")
    last.streams = False
    shell = await scene.formed("xyz")
    await scene.until(lambda: [one.name.rank for one in scene.world.of(GROUP)] == [0, 6, 7] and scene.serving(GROUP))
    assert (shell.lease.size, shell.lease.expert_size) == (1, 2)
    alone = await ordered(scene, SwitchRole(0, RankRole.EXPERTS))
    assert (alone.accepted, alone.unknown) == (False, False)
    assert "the only attention rank" in alone.reason
    assert (await ordered(scene, SwitchRole(3, RankRole.EXPERTS))).unknown
    assert "no expert ranks" not in (await ordered(scene, ResizeGroup(None, 1))).reason
    await scene.until(lambda: scene.serving(GROUP, 2))
    await scene.close(shell)


async def test_expert_ranks_of_a_group_that_has_none() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    answer = await ordered(scene, ResizeGroup(None, 1))
    assert (answer.accepted, answer.detail["kind"]) == (False, "invalid")
    assert "no expert ranks" in answer.reason
    await scene.close(shell)
