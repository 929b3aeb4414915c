"""A shell creates a group or takes one over, keeps it complete, and leaves no process when it ends."""

import asyncio
from functools import partial

import pytest

from serving.errors import GroupError
from serving.group.core.group_course import UNHEARD_S
from serving.group.core.group_map import regroup_map
from serving.group.live.group_port import (
    Begin,
    CloseLog,
    EndRank,
    Follow,
    Leave,
)
from serving.group.live.shell import SWEEP_PERIOD_S, GroupShell
from serving.values.group import RegroupOrder
from tests.live.group_scene import PATIENCE_S, SILENCE_S, Scene

pytestmark = pytest.mark.asyncio


async def test_a_group_is_made_and_leaves_nothing() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    assert shell.group == "decode#abc"
    ranks = scene.world.of("decode#abc")
    assert [rank.name.replica for rank in ranks] == ["decode#abc.r0", "decode#abc.r1"]
    assert scene.serving("decode#abc") == shell.ranks.pids == [rank.pid for rank in ranks]
    await shell.close_logs()
    await scene.close(shell)
    told = [Follow, Begin, CloseLog, Leave, EndRank]
    assert [[type(call) for call in rank.calls] for rank in ranks] == [told] * 2
    assert not scene.world.ranks
    assert not scene.world.placed


async def test_the_next_shell_takes_over_what_a_dead_one_left() -> None:
    scene = Scene()
    await scene.formed("abc")
    before = scene.serving("decode#abc")
    await scene.killed("abc")
    shell = await scene.formed("xyz")
    assert (shell.group, shell.adopted, shell.lease.term) == ("decode#abc", True, 2)
    assert scene.serving("decode#abc") == before, "untouched"
    await scene.killed("xyz")
    third = await scene.formed("third")
    assert (third.group, third.lease.term) == ("decode#abc", 3)
    await scene.close(third)
    assert not scene.world.placed


async def test_a_shell_that_only_seemed_to_be_dead_lets_go() -> None:
    scene = Scene()
    former = await scene.formed("abc")
    scene.world.shells.discard("abc")
    await scene.formed("xyz")
    await scene.ended("abc")
    assert former.lost
    await former.close(0.0, asyncio.create_task(asyncio.sleep(0)))
    assert scene.serving("decode#abc"), "it is not its own any more to end"


def apart(shells: list[GroupShell]) -> bool:
    return len({shell.group for shell in shells}) == len(shells) and not any(shell.lost for shell in shells)


async def test_of_two_shells_that_come_at_once_one_takes_over_and_one_makes_its_own() -> None:
    scene = Scene()
    for count in range(5):
        await scene.formed(f"old{count}")
        await scene.killed(f"old{count}")
        two = [scene.begin(f"a{count}"), scene.begin(f"b{count}")]
        await asyncio.gather(*(asyncio.wait_for(shell.formed.wait(), PATIENCE_S) for shell in two))
        await scene.until(partial(apart, two))
        assert sorted(shell.adopted for shell in two) == [False, True]
        assert f"decode#old{count}" in {shell.group for shell in two}
        for shell in two:
            assert scene.serving(shell.group)
            await scene.close(shell)
        assert not scene.world.ranks


async def test_the_others_go_on_without_a_rank_that_died_until_it_is_replaced() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    kept, lost = scene.world.of("decode#abc")
    scene.world.lose(lost.name)
    await scene.until(lambda: scene.serving("decode#abc"))
    assert scene.serving("decode#abc")[0] == kept.pid
    orders = [call.order for call in kept.calls if isinstance(call, Begin)]
    assert [(order.epoch, order.version, order.members) for order in orders] == [
        (1, 1, (0, 1)),
        (2, 2, (0,)),
        (3, 3, (0, 1)),
    ]
    await scene.close(shell)


async def test_a_frozen_rank_is_replaced_when_it_has_been_silent_for_too_long() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    kept, frozen = scene.world.of("decode#abc")
    frozen.frozen = True
    scene.clock.seconds += SILENCE_S - 1
    await asyncio.sleep(0.02)
    assert frozen.name in scene.world.ranks
    kept_heard = scene.world.of("decode#abc")[0]
    assert kept_heard is kept
    scene.clock.seconds += 2
    await scene.until(lambda: len(scene.serving("decode#abc")) == 2 and frozen.name not in scene.world.ranks)
    assert scene.serving("decode#abc")[0] == kept.pid
    await scene.close(shell)


async def test_the_others_go_on_without_a_lost_host_before_ray_says_that_it_is_lost() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    kept, lost = scene.world.of("decode#abc")
    lost.node = "far"
    await scene.until(lambda: (report := shell.ranks.known[1].report) and report.node == "far")
    scene.world.unkillable, lost.frozen = {"far"}, True
    kept.unreachable = (1,)
    scene.clock.seconds += UNHEARD_S
    await scene.until(lambda: kept.computes_with == [kept.pid])
    assert lost.name in scene.world.ranks
    kept.unreachable = ()
    await scene.until(lambda: len(scene.world.of("decode#abc")) == 3 and len(kept.computes_with) == 2)
    scene.world.unkillable.clear()
    await scene.close(shell)


async def test_a_regrouping_that_a_shell_left_half_done_is_done_by_the_next() -> None:
    """It killed and sent the map, and died before the epoch started: the ranks wait for the next shell."""
    scene = Scene(ranks=3)
    await scene.formed("abc")
    await scene.killed("abc")
    first, second, third = scene.world.of("decode#abc")
    scene.world.lose(third.name)
    assert first.order is not None
    half = RegroupOrder(2, regroup_map({0: first.offer.held, 1: second.offer.held}, 3, 4, 2), first.order.offers[:2])
    first.order = second.order = half
    first.map = second.map = half.map
    shell = await scene.formed("xyz")
    await scene.until(lambda: scene.serving("decode#abc"))
    begun = [call.order for call in second.calls if isinstance(call, Begin)]
    assert [(order.epoch, order.members) for order in begun] == [(1, (0, 1, 2)), (3, (0, 1)), (4, (0, 1, 2))]
    await scene.close(shell)


async def test_a_group_that_cannot_be_built_says_why_and_leaves_nothing() -> None:
    scene = Scene()
    scene.world.unbuildable = "the weights do not fit"
    scene.begin("abc")
    with pytest.raises(GroupError, match="rank 0 of 2: the weights do not fit"):
        await scene.ended("abc")
    assert not scene.world.ranks
    assert not scene.world.placed


async def test_ranks_that_end_while_they_are_built_are_given_up() -> None:
    scene = Scene()
    scene.world.short_lived = True
    scene.begin("abc")
    with pytest.raises(GroupError, match=r"rank \d of 2: its process ended 3 times"):
        await scene.ended("abc")
    assert not scene.world.placed


async def test_a_rank_that_cannot_be_built_later_is_tried_again() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    scene.world.unbuildable = "no memory"
    made = scene.world.made
    scene.world.lose(scene.world.of("decode#abc")[0].name)
    await scene.until(lambda: scene.world.made > made + 3)
    scene.world.unbuildable = ""
    await scene.until(lambda: scene.serving("decode#abc"))
    assert len(shell.ranks.pids) == 2
    await scene.close(shell)


async def test_no_epoch_begins_with_a_rank_that_cannot_join() -> None:
    scene = Scene()
    shell = await scene.formed("abc")
    kept, lost = scene.world.of("decode#abc")
    scene.world.lone_ranks.add(1)
    made = scene.world.made
    scene.world.lose(lost.name)
    await scene.until(lambda: scene.world.made > made + 2)
    begun = [call.order.members for call in kept.calls if isinstance(call, Begin)]
    assert begun[0] == (0, 1)
    assert set(begun[1:]) == {(0,)}
    scene.world.lone_ranks.clear()
    await scene.until(lambda: scene.serving("decode#abc"))
    await scene.close(shell)


async def test_ray_that_does_not_answer_is_asked_again() -> None:
    scene = Scene()
    scene.world.silent_calls = 4
    shell = await scene.formed("abc")
    await scene.close(shell)
    assert not scene.world.ranks


async def test_a_shell_that_waits_for_room_can_be_told_to_leave(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.world.room = False
    shell = scene.begin("abc")
    await scene.until(lambda: len(scene.world.ranks) == 2)
    assert not shell.formed.is_set()
    await asyncio.sleep(0.02)  # several rounds
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == []
    await scene.close(shell)
    assert not scene.world.ranks
    assert not scene.world.placed


async def test_places_that_a_lost_node_left_are_given_back() -> None:
    scene = Scene(silence_s=2 * SWEEP_PERIOD_S)
    await scene.formed("abc")
    for rank in scene.world.of("decode#abc"):
        del scene.world.ranks[rank.name]
    await scene.killed("abc")
    shell = await scene.formed("xyz")
    assert scene.world.placed == {"decode#xyz"}
    scene.world.placed |= {"decode#long-gone"}
    await asyncio.sleep(0.01)
    assert "decode#long-gone" in scene.world.placed, "it is not looked for all the time"
    scene.clock.seconds += SWEEP_PERIOD_S + 1
    await scene.until(lambda: scene.world.placed == {"decode#xyz"})
    assert scene.serving("decode#xyz")
    await scene.close(shell)
