"""A shell whose group has a slow rank: it gets fewer of the experts' rows, then fewer sequences, then is replaced."""

import asyncio
from collections.abc import Mapping

import pytest

from serving.group.core.group_experts import ExpertRules
from serving.group.core.group_pace import StragglerMode
from serving.group.live.group_port import Leave
from serving.values.expert_map import PARTS, ExchangeFacts, ExpertWork
from tests.fakes.rank_group import FakeRank
from tests.live.group_scene import Scene

pytestmark = pytest.mark.asyncio

RANKS, SLOW = 3, 2
GROUP = "decode#abc"
ROWS = (40, 40, 40, 40)
"""Rows of each expert in a slice; experts 0 and 1 are on ranks 0 and 2, the others on rank 1."""
NOTHING = ExchangeFacts((), (), (0.0,) * RANKS, 0.0)


def with_rules(straggler: StragglerMode) -> Scene:
    made = Scene(RANKS, silence_s=1e9)
    made.rules = ExpertRules(window_s=10.0, slices=5, straggler=straggler)
    return made


async def pass_time(scene: Scene, seconds: float, slow: Mapping[int, float]) -> None:
    """Advance the time while ranks compute and wait for the slow one.

    Args:
        slow: by process: time for the same work.
    """
    for _ in range(int(seconds * 2)):
        ranks = scene.world.of(GROUP)
        late = next((rank.name.rank for rank in ranks if rank.pid in slow), None)
        for rank in ranks:
            before, counted = rank.exchange or NOTHING, rank.exchange.work if rank.exchange else ExpertWork()
            work = ExpertWork(counted.seconds + 0.1 * slow.get(rank.pid, 1.0), counted.rows + 100, counted.nets)
            waited = list(before.waited_s)
            if late is not None and rank.name.rank != late:
                waited[late] += 0.2
            rank.exchange = ExchangeFacts((), (), tuple(waited), before.worked_s + 0.3, work)
            rank.rows = (tuple(map(sum, zip(rank.rows[0], ROWS, strict=True))),)
        scene.clock.seconds += 0.5
        await asyncio.sleep(0.004)


def weight(ranks: list[FakeRank], rank: int) -> int:
    """Sixteenths of expert 0 that a rank computes."""
    map_ = ranks[0].map
    assert map_ is not None
    return sum(home.weight for home in map_.layers[0].homes[0] if home.at.rank == rank)


@pytest.mark.parametrize("mode", ["balance", "drain"])
async def test_a_slow_rank_gets_less_then_leaves(mode: StragglerMode) -> None:
    scene = with_rules(mode)
    shell = await scene.formed("abc")
    ranks = scene.world.of(GROUP)
    slow = {ranks[SLOW].pid: 3.0}
    assert weight(ranks, SLOW) == PARTS // 2
    for measure, least, most in (("fewer_tokens", 20, 60), ("fewer_sequences", 0, 60)):
        await pass_time(scene, least, slow)
        for _ in range(most):
            if ranks[0].shown.get("treated", {}).get(str(SLOW)) == measure:
                break
            await pass_time(scene, 1.0, slow)
        assert ranks[0].shown["treated"] == {str(SLOW): measure}
    await pass_time(scene, 10.0, slow)
    assert weight(ranks, SLOW) < PARTS // 2, "its copy of a busy expert gets less"
    assert ranks[SLOW].life.lease.share == pytest.approx(1 / 3)
    assert {ranks[0].life.lease.share, ranks[1].life.lease.share} == {1.0}
    assert [one["measure"] for one in reversed(ranks[0].shown["measures"])] == ["fewer_tokens", "fewer_sequences"]
    assert "3.00 times the median" in ranks[0].shown["measures"][0]["reason"]
    await pass_time(scene, 60.0, slow)
    drained = [one for one in ranks[SLOW].calls if isinstance(one, Leave)]
    if mode == "balance":
        assert not drained
    else:
        assert drained
        await scene.until(lambda: scene.serving(GROUP))
        new = scene.world.of(GROUP)[SLOW]
        assert new.pid != ranks[SLOW].pid
        await pass_time(scene, 5.0, {})
        assert new.life.lease.share == 1.0
        assert ranks[0].shown["treated"] == {}
    await scene.close(shell)


async def test_the_next_shell_knows_of_no_slow_rank_and_takes_measures_back() -> None:
    scene = with_rules("balance")
    await scene.formed("abc")
    ranks = scene.world.of(GROUP)
    await pass_time(scene, 150.0, {ranks[SLOW].pid: 3.0})
    assert ranks[SLOW].life.lease.share < 1.0
    await scene.killed("abc")
    shell = await scene.formed("def")
    await scene.until(lambda: ranks[SLOW].life.lease.shell == "def")
    assert ranks[SLOW].life.lease.share == 1.0
    await scene.close(shell)
