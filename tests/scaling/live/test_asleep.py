"""Pools at zero that the board marks as asleep: only for these do gateways accept requests as ready."""

import asyncio
from dataclasses import replace

from serving.scaling.live.board import ScalingBoard
from serving.values.scaling_operations import HoldPool
from serving.values.signals import Traffic
from serving.values.traffic import GatewayReport
from tests.scaling.live.case import EMPTY, FakeCluster, board_of


def test_a_pool_sleeps_only_where_a_policy_that_lives_would_wake_it() -> None:
    cluster = FakeCluster()

    def asleep(board: ScalingBoard) -> tuple[str, ...]:
        return board.report(GatewayReport("g", Traffic(), 0, EMPTY, EMPTY)).asleep

    cluster.snapshot = replace(
        cluster.snapshot,
        deployments={
            pool: replace(seen, target=0 if pool == "decode" else 1)
            for pool, seen in cluster.snapshot.deployments.items()
        },
    )
    board, unscaled = board_of(cluster), board_of(cluster, policy="none")
    assert asleep(board) == (), "no policy has looked yet"
    asyncio.run(board.next_signals(0.0))
    assert asleep(board) == ("decode",)
    asyncio.run(board.answer(HoldPool("decode", 30.0, "cli")))
    assert asleep(board) == (), "held at zero"
    asyncio.run(board.answer(HoldPool("decode", 0.0, "cli")))
    assert asleep(board) == ("decode",)
    cluster.now += 60
    assert asleep(board) == (), "the policy is dead"
    assert asleep(unscaled) == ()
