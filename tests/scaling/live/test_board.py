"""The driver of the fleet: looks, waits, locks, and what becomes of a cluster that does not answer."""

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from serving.cluster.gcs_store import GcsStore, KeptValues
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import SeenNode
from serving.scaling.live.board import ScalingBoard
from serving.scaling.live.cluster_port import ClusterSilentError
from serving.scaling.live.scaling_board import polled
from serving.values.scaling_operations import (
    HoldPool,
    ReadDecisions,
    ReadEvents,
    ReadPools,
    ReleasePool,
    ScaleAnswer,
    ScalePool,
    ScaleRefusal,
)
from serving.values.signals import Traffic
from serving.values.system_tally import DeploymentNotice
from serving.values.traffic import GatewayReport
from tests.cluster.gcs_fake import FakeGcs
from tests.scaling.core.fleet_case import wanted
from tests.scaling.live.case import DRAINING, EMPTY, FakeCluster, board_of, config, member, replica


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def rows(board: ScalingBoard) -> list[tuple[Any, ...]]:
    """The ledger, oldest first, without times and reasons."""
    entries = board.read(ReadDecisions(limit=100))
    return [(e["pool"], e["before"], e["target"], e["kind"], e["by"]) for e in reversed(entries)]


def pool_row(board: ScalingBoard, pool: str) -> dict[str, Any]:
    return next(row for row in board.read(ReadPools())["pools"] if row["pool"] == pool)


def test_operations_and_decisions_reach_the_cluster_and_are_written_down(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    board = board_of(cluster, policy="none")
    asyncio.run(board.answer(ScalePool("decode", 2, None, "rest")))
    asyncio.run(board.apply([wanted("prefill", 1, 2)]))
    asyncio.run(board.answer(ReleasePool("decode", "page")))
    assert cluster.calls == [("decode", 2), ("prefill", 2)]
    assert rows(board) == [("decode", 1, 2, "held", "rest"), ("prefill", 1, 2, "burst", "autoscaler")]
    assert "prefill: 1 -> 2 (burst, autoscaler): because" in caplog.text
    assert isinstance(asyncio.run(board.answer(ScalePool("decode", 99, None, "cli"))), ScaleRefusal)
    assert board.read(ReadPools())["autoscaler"]["alive"] is False


def test_questions_may_come_before_the_first_look(cluster: FakeCluster) -> None:
    board = ScalingBoard(config(), cluster, KeptValues(), cluster.clock)
    state: Any = asyncio.run(board.answer(ReadPools()))
    assert [row["target"] for row in state["pools"] if row["pool"] == "decode"] == [1]
    for pool in ("prefill", "decode"):
        asyncio.run(board.answer(HoldPool(pool, 9.0, "cli")))
    found: Any = asyncio.run(board.answer(ReadDecisions(after=1)))
    assert [entry["pool"] for entry in found] == ["decode"]


def test_when_serve_is_silent_nothing_changes(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.silent = True
    with pytest.raises(ClusterSilentError):
        asyncio.run(board.answer(ScalePool("decode", 2, None, "cli")))
    cluster.silent = False
    asyncio.run(board.poll())
    assert pool_row(board, "decode")["hold"] is None
    assert rows(board) == []


def test_a_target_without_an_answer_ends_what_was_asked_for_and_blocks_nothing(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.deaf = True
    with pytest.raises(ClusterSilentError):
        asyncio.run(board.apply([wanted("decode", 1, 2)]))
    cluster.deaf, cluster.takes_s = False, 60.0

    async def cancelled() -> None:
        await asyncio.wait_for(board.apply([wanted("decode", 1, 2)]), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    cluster.takes_s = 0.0
    asyncio.run(board.apply([wanted("decode", 1, 2)]))
    assert rows(board) == [("decode", 1, 2, "burst", "autoscaler")]


def test_a_hold_waits_for_the_target_that_is_on_its_way(cluster: FakeCluster) -> None:
    """Otherwise it would report that the pool stays at 1 while its target is 2."""
    board = board_of(cluster)

    async def scene() -> ScaleAnswer | ScaleRefusal:
        await board.poll()
        cluster.takes_s = 0.01
        growing = asyncio.create_task(board.apply([wanted("decode", 1, 2)]))
        await asyncio.sleep(0)
        answer = await board.answer(HoldPool("decode", 600.0, "cli"))
        await growing
        return answer

    answer = asyncio.run(scene())
    assert isinstance(answer, ScaleAnswer)
    assert answer.message == "decode stays at 2: held for 10 min"
    assert [row[:3] for row in rows(board)] == [("decode", 1, 2), ("decode", 2, 2)]


def test_signals_come_after_the_period_or_when_somebody_starves(cluster: FakeCluster) -> None:
    board = board_of(cluster)

    async def scene() -> None:
        waiting = asyncio.create_task(board.next_signals(60.0))
        await asyncio.sleep(0)
        told = board.report(GatewayReport("g", Traffic(queued=1), 1, EMPTY, EMPTY, starved=True))
        assert (told.targets, told.others) == ({"prefill": 1, "decode": 1, "kvcache": 1}, 0)
        signals = await asyncio.wait_for(waiting, 30.0)
        assert signals.traffic.queued == 1
        still = asyncio.create_task(board.next_signals(60.0))
        await asyncio.sleep(0)
        board.report(GatewayReport("g", Traffic(queued=2), 1, EMPTY, EMPTY, starved=True))
        await asyncio.sleep(0.01)
        assert not still.done(), "who starves is told once; then the period counts"
        still.cancel()
        assert (await board.next_signals(0.0)).traffic.queued == 2

    asyncio.run(scene())
    assert board.read(ReadPools())["autoscaler"]["alive"] is True
    cluster.now += 60
    assert board.read(ReadPools())["autoscaler"]["alive"] is False


def test_what_a_scaler_is_told(cluster: FakeCluster) -> None:
    facts: dict[str, Any] = {
        "queued_tokens": 7,
        "waiting": 1,
        "pulling": 1,
        "fetching": 2,
        "running": 3,
        "kv_blocks_used": 5,
        "kv_blocks_total": 50,
    }
    members = {name: member(name, "decode", **facts) for name in ("d1", "x")}
    members["d0"] = member("d0", "decode", running=2, kv_blocks_used=4, kv_blocks_total=50, queued_tokens=9)
    cluster.snapshot = replace(cluster.snapshot, members=members)
    cluster.set_past_the_board("decode", 2)
    cluster.place("decode", replica("d1"), replica("d0", "b", DRAINING))
    board = board_of(cluster, manual_hold_s=600.0, max_decode=9)
    asyncio.run(board.answer(HoldPool("decode", 50.0, "cli")))
    signals = asyncio.run(board.next_signals(0.0))
    decode = signals.pool("decode")
    assert (decode.target, decode.running, decode.starting, decode.draining) == (2, 1, 1, 1)
    assert (decode.queued_tokens, decode.waiting) == (7, 1), "who does not serve is not counted"
    assert decode.sequences == 9, "but who leaves still has its streams"
    assert (decode.kv_blocks_used, decode.kv_blocks_total) == (9, 50)
    assert (decode.low, decode.high, decode.held_until) == (1, 9, 1050.0)
    assert (decode.max_sequences, decode.npus_per_instance) == (32.0, 4)
    assert (signals.npus_total, signals.npus_free) == (16, 16 - 2 - 4 - 4)
    assert signals.cache is not None
    assert signals.cache.target == 1


def test_an_npu_budget_bounds_what_is_free(cluster: FakeCluster) -> None:
    signals = asyncio.run(board_of(cluster, npu_budget=8).next_signals(0.0))
    assert (signals.npus_total, signals.npus_free) == (8, 2)


def test_the_policy_counts_the_nodes_way_where_nothing_fits(cluster: FakeCluster) -> None:
    board = board_of(cluster, nodes="ray", max_decode=5)

    async def start_s() -> float:
        return (await board.next_signals(0.01)).start_s

    async def scene() -> list[float]:
        found = [await start_s()]
        await board.answer(ScalePool("decode", 4, 600.0, "cli"))
        for later_s in (1.0, 25.0):
            cluster.now += later_s
            await board.poll()
        cluster.snapshot = replace(cluster.snapshot, nodes=(*cluster.snapshot.nodes, SeenNode(NodeId("c"), 4, 1024)))
        cluster.now += 1.0
        found.append(await start_s())
        cluster.snapshot = replace(cluster.snapshot, nodes=cluster.snapshot.nodes[:1])
        return [*found, await start_s()]

    before, with_room, without = asyncio.run(scene())
    assert with_room == before, "prefill has room"
    assert without == before + 27.0


def test_a_successor_knows_ledger_and_events_of_the_control_store(cluster: FakeCluster) -> None:
    gcs = FakeGcs()
    kept = KeptValues(GcsStore(lambda: gcs), "board/")
    first = board_of(cluster, kept)
    asyncio.run(first.answer(ScalePool("decode", 2, 60.0, "cli")))
    notice = DeploymentNotice("ann@left (process 7)", "abc", "decode, 1 of 2", {"decode": 3})
    assert asyncio.run(first.deploy(notice)) == {"prefill": 1, "decode": 3, "kvcache": 1}
    assert kept.settled(30.0)
    again = board_of(cluster, KeptValues(GcsStore(lambda: gcs), "board/"))
    assert rows(again) == [("decode", 1, 2, "held", "cli")]
    (event,) = again.read(ReadEvents())
    assert event["text"] == "ann@left (process 7) deploys configuration abc: decode, 1 of 2"


def test_what_was_kept_and_is_damaged_is_said_once(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptValues()
    kept.set("holds", b"{")
    kept.set("events/000000000", b"{")
    board_of(cluster, kept)
    assert caplog.text.count("cannot be read") == 1
    assert caplog.text.count("a damaged line of events/000000000") == 1


def test_a_first_look_is_waited_for_but_not_for_ever() -> None:
    silent = [ClusterSilentError("the board is new"), ClusterSilentError("still")]

    async def poll() -> None:
        if silent:
            raise silent.pop()

    assert asyncio.run(polled(poll, 60.0, 0.0))
    silent += [ClusterSilentError("no controller")] * 9
    assert not asyncio.run(polled(poll, -1.0, 0.0))


def test_the_state_is_json(cluster: FakeCluster) -> None:
    state = json.loads(json.dumps(board_of(cluster).read(ReadPools())))
    assert state["npus"] == {"used": 6, "offered": 16}
    assert state["ub_memory_mib"] == {"used": 128 + 256 + 64, "offered": 2048}
    assert [row["pool"] for row in state["pools"]] == ["prefill", "decode", "kvcache"]
    assert {row["pool"]: row["fits"] for row in state["pools"]} == {"prefill": 6, "decode": 3, "kvcache": 26}
    assert state["decisions"] == []
