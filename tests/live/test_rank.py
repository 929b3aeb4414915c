"""A rank executes its shell's commands, and reports its progress."""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from serving.errors import GroupError, ModelError
from serving.group.compute.rank_experts import Answered
from serving.group.core.rank_life import LEASE_S, check_offers
from serving.group.live.rank import Rank, RankRuntime
from serving.ids import NodeId, ReplicaId
from serving.values.expert_map import ExpertMove, ExpertOrder, ExpertSlot, FetchExpert, MoveFetched, MovesEnded
from serving.values.group import MoveOneExpert, OrderAnswer, PostedOrder, RankLease, RankOffer, RankPhase, RegroupOrder
from serving.values.instances import CRASHED_AGE_S, InstancePlace, RankPlace
from tests.fakes.clock import ManualClock
from tests.fakes.rank_group import ordered

FOUNDER = RankLease("abc", 77, 1)
PLACE = InstancePlace(
    ReplicaId("decode#abc.r1"), "decode", NodeId("n"), (), Path("/nowhere"), "127.0.0.1", 1,
    rank=RankPlace(1, 2, 8, "decode#abc"),
)  # fmt: skip


class FakeRankInstance:
    """The part of an instance that a rank uses."""

    def __init__(self) -> None:
        self.member = self
        self.order: RegroupOrder | None = None
        self.raised = 0
        self.unreachable = (7,)
        self.hangs = False
        self.port_taken = False
        self.empty = asyncio.Event()
        self.said: list[str] = []
        self.asked: list[ExpertOrder] = []
        self.answered: Answered

    def offer(self) -> RankOffer:
        return RankOffer(1, os.getpid(), "", "x")

    def follow(self, order: RegroupOrder) -> None:
        check_offers(self.offer(), 2, order.offers)
        self.order = order

    def begin(self, epoch: int, members: Sequence[int]) -> None:
        self.raised = epoch

    async def start(self) -> tuple[str, int]:
        if self.port_taken:
            raise OSError("no port is free")
        self.said.append("start")
        return "127.0.0.1", 4711

    async def leave(self, drain_s: float) -> None:
        self.said.append(f"leave {drain_s:g}")
        await self.empty.wait()

    def quit(self) -> None:
        self.said.append("quit")

    async def stop(self) -> None:
        self.said.append("stop")

    @property
    def version(self) -> int:
        return self.order.version if self.order is not None else 0

    @property
    def using(self) -> int:
        return self.raised

    def carry_out(self, orders: Sequence[ExpertOrder], answered: Answered) -> None:
        self.asked += orders
        self.answered = answered

    def close_log(self) -> None:
        self.said.append("close log")

    def hold(self, share: float, stall_timeout_s: float) -> tuple[float, int | None]:
        assert stall_timeout_s == 30.0
        self.share = share
        return CRASHED_AGE_S if self.hangs else 0.0, 0

    def move(self, host: str) -> tuple[str, int] | None:
        return host, 4712

    def facts(self) -> dict[str, Any]:
        return {"npus": ["n0.npu1"]}


MOVE = ExpertMove(0, 1, ExpertSlot(1, 0), None)
OFFERS = (RankOffer(0, 5, "", "x"), RankOffer(1, os.getpid(), "", "x"))
ORDER = ordered(1, 1, OFFERS)


class RankScene:
    """A rank around a fake instance."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.instance = FakeRankInstance()
        self.clock = ManualClock()

        def make() -> RankRuntime:
            if broken is not None:
                raise broken
            return cast(RankRuntime, self.instance)

        self.rank = Rank(PLACE, FOUNDER, make, 30.0, self.clock.now)

    def phase(self) -> RankPhase:
        return self.rank.hold(FOUNDER).phase


@pytest.mark.asyncio
async def test_it_is_built_joins_serves_drains_and_stops() -> None:
    scene = RankScene()
    assert scene.phase() is RankPhase.LOADING
    with pytest.raises(GroupError, match="loading and is not part of a group"):
        await scene.rank.follow(ORDER)
    await scene.rank.build()
    report = scene.rank.hold(FOUNDER)
    assert (report.phase, report.offer, report.pid) == (RankPhase.OFFERED, OFFERS[1], os.getpid())
    assert sorted(await asyncio.gather(scene.rank.follow(ORDER), scene.rank.follow(ORDER))) == [False, True]
    assert scene.phase() is RankPhase.SERVING
    assert scene.rank.address == ("127.0.0.1", 4711)
    scene.rank.close_log()
    scene.rank.leave(5.0)
    scene.rank.leave(1.0)
    await asyncio.sleep(0)
    assert scene.phase() is RankPhase.LEAVING
    scene.instance.empty.set()
    await asyncio.sleep(0)
    assert scene.phase() is RankPhase.LEFT
    assert not await scene.rank.follow(ordered(2, 2, OFFERS))
    assert scene.rank.hold(FOUNDER).version == 2, "it is a member until it quits: all others wait for its map"
    await scene.rank.quit()
    with pytest.raises(GroupError, match="left and is not part of a group"):
        await scene.rank.follow(ordered(3, 3, OFFERS))
    await scene.rank.stop()
    await scene.rank.stop()
    assert scene.instance.said == ["start", "close log", "leave 5", "quit", "stop"]
    report = scene.rank.hold(FOUNDER)
    assert (report.phase, report.offer) == (RankPhase.LEFT, None), "its shell may have died before it ended it"


@pytest.mark.asyncio
async def test_it_tells_with_whom_it_computes() -> None:
    scene = RankScene()
    await scene.rank.build()
    scene.rank.begin(1, (0, 1))
    assert scene.rank.hold(FOUNDER).members == ()
    await scene.rank.follow(ORDER)
    scene.rank.begin(1, (0, 1))
    report = scene.rank.hold(FOUNDER)
    assert (report.members, report.epoch, report.raised, report.version) == ((5, os.getpid()), 1, 1, 1)
    assert report.unreachable == (7,)
    assert report.late_peer == 0
    assert not await scene.rank.follow(ordered(2, 2, OFFERS[1:])), "it serves already"
    report = scene.rank.hold(FOUNDER)
    assert (report.members, report.epoch, report.raised, report.version) == ((os.getpid(),), 2, 1, 2)
    with pytest.raises(GroupError, match="another process"):
        await scene.rank.follow(ordered(3, 3, OFFERS[:1]))
    assert scene.phase() is RankPhase.SERVING
    await scene.rank.stop()


@pytest.mark.asyncio
async def test_experts_move_for_the_shell_that_holds_the_rank() -> None:
    scene = RankScene()
    with pytest.raises(GroupError, match="accepts no expert moves"):
        await scene.rank.move(FOUNDER, [FetchExpert(MOVE)])
    await scene.rank.build()
    await scene.rank.follow(ORDER)
    asked = asyncio.create_task(scene.rank.move(FOUNDER, [FetchExpert(MOVE)]))
    await asyncio.sleep(0)
    assert scene.instance.asked == [FetchExpert(MOVE)]
    Thread(target=lambda: scene.instance.answered((MoveFetched(MOVE),))).start()
    assert await asked == (MoveFetched(MOVE),)
    scene.rank.hold(RankLease("xyz", 78, 2))
    with pytest.raises(GroupError, match="accepts no expert moves from shell abc"):
        await scene.rank.move(FOUNDER, [MovesEnded(None)])
    await scene.rank.stop()


@pytest.mark.asyncio
async def test_an_operators_order_waits_for_a_shell() -> None:
    scene = RankScene()
    posted = PostedOrder("1", MoveOneExpert(0, 3, 1))
    asked = asyncio.create_task(scene.rank.mailbox.post(posted, 30.0))
    await asyncio.sleep(0)
    assert scene.rank.hold(FOUNDER).orders == (posted,)
    assert scene.rank.hold(RankLease("xyz", 78, 2)).orders == (posted,), "the next shell finds it, too"
    scene.rank.mailbox.answer("0", OrderAnswer(True))
    scene.rank.mailbox.answer("1", OrderAnswer(True, "done"))
    scene.rank.mailbox.answer("1", OrderAnswer(False, "too late"))
    assert await asked == OrderAnswer(True, "done")
    assert scene.rank.hold(FOUNDER).orders == ()
    refused = await scene.rank.mailbox.post(posted, 0.0)
    assert (refused.accepted, scene.rank.hold(FOUNDER).orders) == (False, ())
    assert "has not responded" in refused.reason


@pytest.mark.asyncio
async def test_facts_tell_whose_rank_it_is() -> None:
    scene = RankScene()
    await scene.rank.build()
    told = scene.rank.facts()
    assert (told["group"], told["rank"], told["ranks"], told["npus"]) == ("decode#abc", 1, 2, ["n0.npu1"])
    assert (told["shell"], told["shell_pid"], told["pid"]) == ("abc", 77, os.getpid())
    scene.rank.hold(RankLease("xyz", 78, 2))
    assert (scene.rank.facts()["shell"], scene.rank.facts()["shell_pid"]) == ("xyz", 78)
    scene.rank.hold(RankLease("xyz", 78, 3, 4))
    await scene.rank.follow(ORDER)
    assert scene.rank.facts()["ranks"] == 2, "it grows, and has not yet"
    scene.rank.hold(RankLease("xyz", 78, 4, 1))
    assert scene.rank.facts()["ranks"] == 1


def never_built(scene: RankScene) -> object:
    return scene.rank.build()


async def has_other_peers(scene: RankScene) -> None:
    await scene.rank.build()
    with pytest.raises(GroupError, match="is now another process"):
        await scene.rank.follow(ordered(1, 1, OFFERS[:1]))


async def has_no_port(scene: RankScene) -> None:
    scene.instance.port_taken = True
    await scene.rank.build()
    with pytest.raises(GroupError, match="no port is free"):
        await scene.rank.follow(ORDER)


@pytest.mark.parametrize(
    ("act", "broken", "why"),
    [
        (never_built, ModelError("no config.json"), "no config.json"),
        (never_built, AssertionError(), "AssertionError"),
        (has_other_peers, None, "rank 1 of the group is now another process"),
        (has_no_port, None, "no port is free"),
    ],
)
@pytest.mark.asyncio
async def test_what_goes_wrong_is_told(act: Callable[[RankScene], Any], broken: Exception | None, why: str) -> None:
    scene = RankScene(broken)
    await act(scene)
    report = scene.rank.hold(FOUNDER)
    assert (report.phase, report.problem) == (RankPhase.FAILED, why)
    scene.rank.leave(1.0)
    await scene.rank.stop()


@pytest.mark.asyncio
async def test_a_rank_that_never_began_has_nothing_to_drain() -> None:
    scene = RankScene()
    scene.rank.leave(1.0)
    await scene.rank.stop()
    assert scene.phase() is RankPhase.LOADING
    await scene.rank.build()
    scene.rank.leave(1.0)
    assert scene.phase() is RankPhase.LEFT


@pytest.mark.asyncio
async def test_it_tells_when_it_hangs() -> None:
    scene = RankScene()
    await scene.rank.build()
    assert scene.rank.hold(FOUNDER).stalled_s == 0.0
    scene.instance.hangs = True
    assert scene.rank.hold(FOUNDER).stalled_s == 1e9


@pytest.mark.asyncio
async def test_it_notices_that_no_shell_asks() -> None:
    scene = RankScene()
    for _ in range(int(LEASE_S)):
        scene.clock.seconds += 1.0
        assert not scene.rank.lapsed()
    scene.rank.hold(RankLease("nobody", 1, 0))  # a query does not take the hold
    scene.clock.seconds += 1.0
    assert scene.rank.lapsed()


def test_ranks_of_one_group_fit_each_other() -> None:
    with pytest.raises(GroupError, match="have different models"):
        check_offers(OFFERS[0], 2, (OFFERS[0], RankOffer(1, 6, "", "y")))
