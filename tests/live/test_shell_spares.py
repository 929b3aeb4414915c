"""A shell keeps spares: loaded ranks that wait to replace a lost one."""

import pytest

from serving.group.live.group_port import Begin
from serving.values.group import OrderAnswer, PostedOrder, RankPhase, ResizeGroup
from tests.live.group_scene import Scene

pytestmark = pytest.mark.asyncio

GROUP = "decode#abc"
SERVING, SPARE = RankPhase.SERVING, RankPhase.OFFERED


def phases(scene: Scene) -> dict[int, RankPhase]:
    return {rank.name.rank: rank.life.phase for rank in scene.world.of(GROUP)}


def epochs(scene: Scene) -> list[tuple[int, ...]]:
    """Members of the epochs that the first rank has started."""
    return [call.order.members for call in scene.world.of(GROUP)[0].calls if isinstance(call, Begin)]


async def resized(scene: Scene, size: int) -> OrderAnswer:
    posted = PostedOrder(f"to {size}", ResizeGroup(size))
    rank = scene.world.of(GROUP)[0]
    rank.orders.append(posted)
    await scene.until(lambda: posted.id in rank.answers)
    return rank.answers[posted.id]


async def test_a_spare_takes_the_place_of_a_lost_rank_and_another_one_is_made() -> None:
    scene = Scene(spares=1)
    shell = await scene.formed("abc")
    await scene.until(lambda: phases(scene) == {0: SERVING, 1: SERVING, 2: SPARE})
    first, lost, spare = scene.world.of(GROUP)
    await scene.until(lambda: first.shown.get("spares") == [2])
    assert (lost.gently, spare.gently) == (False, True)
    scene.world.lose(lost.name)
    await scene.until(lambda: phases(scene) == {0: SERVING, 1: SPARE, 2: SERVING})
    assert epochs(scene) == [(0, 1), (0, 2)], "at once, and never without"
    assert scene.world.of(GROUP)[1].gently
    await scene.until(lambda: first.shown["spares"] == [1])
    assert first.shown["losses"] == {"dead": 1}
    scene.world.lose(scene.world.of(GROUP)[1].name)  # a spare is replaced, too
    await scene.until(lambda: scene.world.made == 5 and phases(scene) == {0: SERVING, 1: SPARE, 2: SERVING})
    assert len(epochs(scene)) == 2, "and nobody waits for that"
    await scene.close(shell)
    assert not scene.world.ranks
    assert not scene.world.placed


async def test_a_group_grows_by_its_spares_first_and_keeps_their_number() -> None:
    scene = Scene(spares=1)
    shell = await scene.formed("abc")
    await scene.until(lambda: phases(scene) == {0: SERVING, 1: SERVING, 2: SPARE})
    made = scene.world.made
    assert (await resized(scene, 3)).accepted
    await scene.until(lambda: phases(scene) == {0: SERVING, 1: SERVING, 2: SERVING, 3: SPARE})
    assert epochs(scene) == [(0, 1), (0, 1, 2)]
    assert scene.world.made == made + 1
    assert (await resized(scene, 2)).accepted
    await scene.until(lambda: phases(scene) == {0: SERVING, 1: SERVING, 2: SPARE})
    assert scene.world.added == {(GROUP, 2)}, "the place of rank 3 is given back"
    assert epochs(scene)[-1] == (0, 1)
    await scene.close(shell)


async def test_the_next_shell_knows_spares() -> None:
    scene = Scene(spares=1)
    await scene.formed("abc")
    await scene.until(lambda: phases(scene) == {0: SERVING, 1: SERVING, 2: SPARE})
    await scene.killed("abc")
    scene.world.lose(scene.world.of(GROUP)[0].name)
    shell = await scene.formed("xyz")
    assert shell.group == GROUP
    await scene.until(lambda: phases(scene) == {0: SPARE, 1: SERVING, 2: SERVING})
    await scene.close(shell)
