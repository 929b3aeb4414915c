"""Commands from the page of the experts, and its view of groups."""

import asyncio
from typing import Any

from msgspec import to_builtins

from serving.cluster.gcs_store import KeptValues
from serving.ids import NodeId, ReplicaId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.live.board import ScalingBoard
from serving.values.expert_map import ExpertFacts
from serving.values.group import DrainRank, OrderAnswer, RebalanceExperts, ResizeGroup
from serving.values.scaling_operations import (
    DrainGroupRank,
    GroupAnswer,
    PoolOperation,
    ReadDecisions,
    ReadExperts,
    RebalanceGroup,
    ResizeRankGroup,
    ScaleRefusal,
)
from serving.values.signals import Traffic
from serving.values.traffic import GatewayReport, InstanceNotice
from tests.scaling.live.case import EMPTY, FakeCluster, board_of, grouped, nodes, started

GROUP = "decode#d1"
LOST = ("d1", "d1.r1", "d11.r1")


def rank(number: int, **facts: object) -> SeenMember:
    experts = ExpertFacts(1, 4, (0, 1), 2, 2, ((7, 7),), rows=((7, 7),))
    told = {"group": GROUP, "rank": number, "pid": 50 + number, "actor": f"rank-{number}"}
    name = f"d1.r{number}"
    return SeenMember(name, "decode", "1", {**told, "experts": to_builtins(experts), **facts}, NodeId("a"))


def ask(board: ScalingBoard, operation: PoolOperation[Any]) -> Any:
    return asyncio.run(board.answer(operation))


def of_ranks(*ranks: SeenMember) -> tuple[FakeCluster, ScalingBoard]:
    cluster = FakeCluster(ClusterSnapshot(0.0, started(), nodes(), {one.name: one for one in ranks}))
    return cluster, board_of(cluster)


def test_an_order_goes_to_the_first_rank_that_takes_orders() -> None:
    cluster, board = of_ranks(rank(0, draining=True), rank(1))
    cluster.order_answer = OrderAnswer(True, "3 moves begin")
    assert ask(board, RebalanceGroup(GROUP)) == GroupAnswer(GROUP, "3 moves begin")
    assert cluster.orders == [("rank-1", RebalanceExperts())]


def test_drains_and_sizes_are_orders_too() -> None:
    cluster, board = of_ranks(rank(0), rank(1))
    cluster.order_answer = OrderAnswer(True, "it begins")
    ask(board, DrainGroupRank(GROUP, 1))
    ask(board, ResizeRankGroup(GROUP, 4))
    assert cluster.orders == [("rank-0", DrainRank(1)), ("rank-0", ResizeGroup(4))]
    cluster.order_answer = OrderAnswer(False, "4 ranks do not fit, 3 would", detail={"kind": "no_room", "fits": 3})
    refused = ask(board, ResizeRankGroup(GROUP, 4))
    assert refused == ScaleRefusal("no_room", "4 ranks do not fit, 3 would", 3)


def test_refusals_say_why() -> None:
    cluster, board = of_ranks(rank(0))
    assert ask(board, RebalanceGroup(GROUP)) == ScaleRefusal("unavailable", "the rank is gone")
    cluster.order_answer = OrderAnswer(False, "experts are being moved")
    assert ask(board, RebalanceGroup(GROUP)) == ScaleRefusal("not_now", "experts are being moved")
    gone = ask(board, RebalanceGroup("decode#other"))
    assert gone == ScaleRefusal("unknown_group", "there is no group 'decode#other' that takes orders")
    assert len(cluster.orders) == 2


def test_groups_as_the_page_shows_them() -> None:
    _, board = of_ranks(rank(1, npus=["n0.npu3"]), rank(0, draining=True))
    lost = [InstanceNotice("died", "decode", ReplicaId(f"decode#{name}"), "closed by the peer") for name in LOST]
    board.report(GatewayReport("g", Traffic(), 0, EMPTY, EMPTY, notices=tuple(lost)))
    seen = ask(board, ReadExperts())
    assert (seen["model"], seen["mode"], seen["ep"]["decode"]) == ("tiny", "disaggregated", 1)
    (group,) = seen["groups"]
    assert (group["group"], group["pool"], group["map_version"]) == (GROUP, "decode", 4)
    assert [(one["rank"], one["state"]) for one in group["ranks"]] == [(0, "draining"), (1, "dead")]
    assert group["ranks"][1]["npus"] == ["n0.npu3"]
    assert [(one["kind"], one["replica"]) for one in group["events"]] == [("died", "d1.r1")], "of its own ranks"


def sized(wanted: int) -> tuple[FakeCluster, ScalingBoard]:
    """A group of two ranks that may have six."""
    ranks = [rank(number, shell="d1", ranks=2, ranks_wanted=wanted) for number in range(2)]
    cluster = FakeCluster(ClusterSnapshot(0.0, started(), nodes(), {one.name: one for one in ranks}))
    board = ScalingBoard(grouped(), cluster, KeptValues(), cluster.clock)
    asyncio.run(board.poll())
    return cluster, board


def test_the_scaler_s_target_resizes_a_group() -> None:
    cluster, board = sized(2)
    told = asyncio.run(board.next_signals(0.0)).pool("decode")
    assert (told.target, told.running, told.npus_per_instance) == (2, 2, 1)
    grow = PoolTarget("decode", 2, 4, ScaleKind.BURST, "a queue")
    asyncio.run(board.apply([grow]))  # the shell's rank does not answer
    cluster.order_answer = OrderAnswer(True, "2 -> 4 ranks")
    asyncio.run(board.poll())
    assert cluster.orders == [("rank-0", ResizeGroup(4))] * 2
    assert cluster.calls == [], "the number of groups stays"
    (entry,) = board.read(ReadDecisions())
    assert (entry["before"], entry["target"], entry["kind"], entry["by"]) == (2, 4, "burst", "autoscaler")


def test_a_shell_that_refuses_holds_the_pool() -> None:
    cluster, board = sized(2)
    cluster.order_answer = OrderAnswer(False, "4 ranks do not fit", detail={"kind": "no_room", "fits": 2})
    asyncio.run(board.apply([PoolTarget("decode", 2, 4, ScaleKind.BURST, "a queue")]))
    newest, _ = board.read(ReadDecisions())
    assert (newest["before"], newest["target"], newest["reason"]) == (
        4,
        2,
        "4 ranks do not fit; held; counted in parts of 1 NPU",
    )
    told = asyncio.run(board.next_signals(0.0)).pool("decode")
    assert (told.target, told.held_until > 0) == (2, True)
    asyncio.run(board.apply([PoolTarget("decode", 2, 3, ScaleKind.BURST, "a queue")]))
    assert len(cluster.orders) == 1
