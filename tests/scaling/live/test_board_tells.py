"""Reports of the board besides its ledger: events, samples, hardware."""

import asyncio
from typing import Any

import pytest

from serving.ids import ReplicaId
from serving.scaling.live.board import ScalingBoard
from serving.values.scaling_operations import ReadEvents, ReadHistory, ReadPools
from serving.values.signals import Traffic
from serving.values.system_tally import npus_offered
from serving.values.traffic import GatewayReport, InstanceNotice
from tests.scaling.live.case import EMPTY, FakeCluster, board_of, replica

DIED = InstanceNotice("died", "decode", ReplicaId("cloudmatrix#decode#d1"), "connection lost", 3, 400)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def pool_row(board: ScalingBoard, pool: str) -> dict[str, Any]:
    return next(row for row in board.read(ReadPools())["pools"] if row["pool"] == pool)


def events(board: ScalingBoard, question: ReadEvents) -> list[dict[str, Any]]:
    told = asyncio.run(board.answer(question))
    assert isinstance(told, list)
    return told


def test_a_death_is_shown_before_the_next_look(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    board.report(GatewayReport("g", Traffic(), 0, EMPTY, EMPTY, notices=(DIED,)))
    assert (pool_row(board, "decode")["running"], pool_row(board, "decode")["dead"]) == (0, 1)
    assert pool_row(board, "decode")["replicas"][0]["state"] == "dead"
    (event,) = events(board, ReadEvents("decode"))
    assert event["text"] == "connection lost; 3 streams moved, 400 tokens resumed"
    assert board.read(ReadPools())["events"] == [event]
    cluster.now += 2.0
    cluster.place("decode", replica("d2"))
    asyncio.run(board.poll())
    assert [one["kind"] for one in events(board, ReadEvents())] == ["replaced", "died"]
    assert events(board, ReadEvents(after=event["id"]))[0]["replica"] == "d2"
    assert pool_row(board, "decode")["dead"] == 0


def test_samples_are_kept_while_nobody_asks(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    for number in range(1, 12):
        cluster.now += 1.0
        board.report(GatewayReport("g", Traffic(arrived_tokens=100 * number), 0, EMPTY, EMPTY, known=True))
        asyncio.run(board.poll())
    samples: Any = asyncio.run(board.answer(ReadHistory()))
    assert [sample["at"] for sample in samples] == [1005.0, 1010.0]
    assert samples[1]["prompt_tokens_per_s"] == 100.0
    assert asyncio.run(board.answer(ReadHistory(1005.0))) == samples[1:]


def test_hardware_by_node_and_the_endpoint(cluster: FakeCluster) -> None:
    state = board_of(cluster).read(ReadPools())
    assert (state["gateway"]["host"], state["gateway"]["port"]) == ("127.0.0.1", 8000), "for links to its pages"
    first, second = state["nodes"]
    assert (first["name"], len(first["npus"]), first["npus"][0]) == ("a", 8, "a.npu0")
    assert first["ub_memory_mib"] == {"used": 128 + 256, "offered": 1024}
    assert second["ub_memory_mib"] == {"used": 64, "offered": 1024}
    assert [one["state"] for one in (first, second)] == ["alive", "alive"]


def test_a_dead_host_is_a_row_and_no_part_of_a_sum(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.lose_node("b")
    cluster.now += 3.0
    asyncio.run(board.poll())
    cluster.now += 9.0
    state = board.read(ReadPools())
    assert state["npus"]["offered"] == 8
    assert [(one["name"], one["state"], one["lost_s"], len(one["npus"])) for one in state["nodes"]] == [
        ("a", "alive", None, 8),
        ("b", "dead", 12.0, 8),
    ]
    hosts = board.report(GatewayReport("g", Traffic(), 0, EMPTY, EMPTY)).hosts
    assert [(one.name, one.lost_s, one.npus_used) for one in hosts] == [("a", None, 6), ("b", 12.0, 0)]
    assert npus_offered(hosts) == 8
