"""Targets beyond the present capacity, where Ray may add nodes: accepted, waited for, withdrawn."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.cli.decisions import line
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import SeenNode
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.node_wait import NodeWait, NodeWaits
from serving.scaling.live.board import ScalingBoard
from serving.values.scaling import ReadDecisions, ScaleAnswer, ScalePool, ScaleRefusal
from tests.scaling.live.case import FakeCluster, board_of, replica


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes of 8 NPUs; decode takes 4, so 3 of it fit next to prefill."""
    return FakeCluster()


def row(board: ScalingBoard) -> dict[str, Any]:
    return next(row for row in board.state()["pools"] if row["pool"] == "decode")


def reasons(board: ScalingBoard) -> list[str]:
    return [entry["reason"] for entry in board.state()["decisions"]]


def waits(board: ScalingBoard) -> list[float | None]:
    return [entry["waits_s"] for entry in board.state()["decisions"]]


def look(board: ScalingBoard, cluster: FakeCluster, later_s: float) -> None:
    cluster.now += later_s
    asyncio.run(board.look())


def asked(board: ScalingBoard, replicas: int) -> ScaleAnswer | ScaleRefusal:
    return asyncio.run(board.answer(ScalePool("decode", replicas, 600.0, "cli")))


def test_fixed_nodes_refuse_as_ever(cluster: FakeCluster) -> None:
    told = asked(board_of(cluster, max_decode=9), 4)
    assert isinstance(told, ScaleRefusal)
    assert (told.kind, told.fits) == ("no_room", 3)


def test_ray_may_add_a_node(cluster: FakeCluster) -> None:
    board = board_of(cluster, nodes="ray", max_decode=5)
    refused = asked(board, 6)
    assert isinstance(refused, ScaleRefusal)
    assert refused.fits == 5, "the pool's most is the most that is asked of Ray"
    told = asked(board, 4)
    assert isinstance(told, ScaleAnswer)
    assert told.message.endswith(
        "an instance needs 4 NPUs whole on one node, at most 2 are free on any then: waits for a node"
    )
    assert cluster.calls == [("decode", 4)]
    look(board, cluster, 1.0)
    look(board, cluster, 22.0)
    assert (row(board)["target"], row(board)["waits_s"]) == (4, 23.0)
    assert waits(board) == [23.0, None][: len(waits(board))]
    assert line(board.decisions(ReadDecisions())[0]).endswith(": waits for a node (23 s)")
    third = SeenNode(NodeId("c"), 8, 1024)
    cluster.sight = replace(cluster.sight, nodes=(*cluster.sight.nodes, third))
    look(board, cluster, 2.0)
    assert row(board)["waits_s"] is None
    assert waits(board) == [None] * len(waits(board))
    assert line(board.decisions(ReadDecisions())[0]).endswith("room came after 25 s")
    look(board, cluster, 1000.0)
    assert cluster.calls == [("decode", 4)]


def test_a_target_for_which_no_node_comes_is_taken_back(cluster: FakeCluster) -> None:
    board = board_of(cluster, nodes="ray", node_wait_s=60.0, max_decode=9)
    asyncio.run(board.apply([PoolTarget("decode", 1, 5, ScaleKind.BURST, "a queue")]))
    assert "waits for a node" in reasons(board)[0]
    look(board, cluster, 59.0)
    assert cluster.calls == [("decode", 5)]
    look(board, cluster, 1.0)
    assert cluster.calls == [("decode", 5), ("decode", 3)]
    assert reasons(board)[0].startswith("no node came for 60 s, 3 fit: ")
    look(board, cluster, 500.0)
    assert cluster.calls == [("decode", 5), ("decode", 3)]
    assert row(board)["waits_s"] is None


def test_a_wait_that_nobody_asked_for_is_told_too_and_the_least_is_not_taken_back(cluster: FakeCluster) -> None:
    cluster.sight = replace(cluster.sight, nodes=())
    cluster.place("decode")
    board = board_of(cluster, nodes="ray", node_wait_s=60.0)
    told = [entry for entry in board.state()["decisions"] if entry["pool"] == "decode"]
    assert [entry["reason"].endswith(": waits for a node") for entry in told] == [True]
    look(board, cluster, 30.0)
    assert len([entry for entry in board.state()["decisions"] if entry["pool"] == "decode"]) == 1
    look(board, cluster, 30.0)
    assert cluster.calls == []
    assert "no node came for 60 s, and 1 is the least of decode: waits for a node" in reasons(board)
    cluster.sight = replace(cluster.sight, nodes=(SeenNode(NodeId("c"), 8, 1024),))
    look(board, cluster, 1.0)
    look(board, cluster, 5.0)
    assert row(board)["waits_s"] is None


def test_the_policy_counts_the_nodes_way_where_nothing_fits(cluster: FakeCluster) -> None:
    board = board_of(cluster, nodes="ray", max_decode=5)

    async def start_s() -> float:
        return (await board.next_signals(0.01)).start_s

    async def scene() -> list[float]:
        found = [await start_s()]
        await board.answer(ScalePool("decode", 4, 600.0, "cli"))
        for later_s in (1.0, 25.0):
            cluster.now += later_s
            await board.look()
        cluster.sight = replace(cluster.sight, nodes=(*cluster.sight.nodes, SeenNode(NodeId("c"), 4, 1024)))
        cluster.now += 1.0
        found.append(await start_s())
        cluster.sight = replace(cluster.sight, nodes=cluster.sight.nodes[:1])
        return [*found, await start_s()]

    before, with_room, without = asyncio.run(scene())
    assert with_room == before, "prefill has room"
    assert without == before + 27.0


def test_a_pool_that_shrinks_gives_a_whole_host_back(cluster: FakeCluster) -> None:
    cluster.sight = replace(cluster.sight, nodes=(*cluster.sight.nodes, SeenNode(NodeId("c"), 8, 1024, 2)))
    cluster.place("decode", replica("d1"), replica("d2", "c"), replica("d3", "b"))
    cluster.set_past_the_board("decode", 3)
    board = board_of(cluster, nodes="ray", max_decode=3)
    asked(board, 2)
    assert cluster.leaving == ("d2",), "on b is a memory server, on a prefill"
    assert reasons(board)[0].endswith("; n2 is empty then")
    asked(board, 3)
    assert not cluster.leaving


def test_where_nobody_takes_hosts_back_the_fullest_gives(cluster: FakeCluster) -> None:
    cluster.place("decode", replica("d1"), replica("d2", started_at=1.0), replica("d3", "b", started_at=2.0))
    cluster.set_past_the_board("decode", 3)
    board = board_of(cluster)
    asked(board, 2)
    assert cluster.leaving == ("d2",)
    assert "empty" not in reasons(board)[0]


def test_whoever_wants_less_waits_for_nothing(cluster: FakeCluster) -> None:
    board = board_of(cluster, nodes="ray", max_decode=9)
    asked(board, 5)
    look(board, cluster, 1.0)
    asked(board, 1)
    look(board, cluster, 1.0)
    assert row(board)["waits_s"] is None
    assert "came" not in reasons(board)[0]


def test_a_target_set_past_the_board_waits_too(cluster: FakeCluster) -> None:
    board = board_of(cluster, nodes="ray", max_decode=4)
    cluster.set_past_the_board("decode", 9)
    look(board, cluster, 1.0)
    assert cluster.calls == [("decode", 4)], "no more than the pool's most"
    cluster.place("decode", replica("d1"))
    look(board, cluster, 5.0)
    assert row(board)["waits_s"] == 5.0


@given(looks=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.1, 4.0)), max_size=30))
def test_every_wait_ends_once_and_never_later_than_its_limit(looks: list[tuple[int, int, float]]) -> None:
    waits, now, since = NodeWaits(5.0), 0.0, None
    for target, room, seconds in looks:
        now += seconds
        end = waits.observe("p", target, room, now)
        if target > room:
            since = now if since is None else since
            assert end == (NodeWait("vain", now - since) if now - since >= 5.0 else None)
        else:
            assert end == (NodeWait("came", now - since) if since is not None else None)
        since = since if target > room and end is None else None
        assert waits.waited_s("p", now) == (now - since if since is not None else None)
