"""A deployment on the board: its targets are no person's, its stages are events, and events outlive it."""

import asyncio
from dataclasses import replace

import pytest

from serving.cluster.kept_values import KeptValues
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.deployment_watch import QUIET_S
from serving.scaling.live.board import ScalingBoard
from serving.scaling.live.cluster_port import ClusterSilentError
from serving.scaling.live.scaling_board import looked
from serving.values.deployment import DeploymentNotice
from serving.values.scaling import ReadDecisions, ReadEvents, ScalePool
from tests.scaling.live.case import FakeCluster, board_of, deployment, replica

STAGE = DeploymentNotice("ann@left (process 7)", "abc", "decode, 1 of 2", {"decode": 3})
OVER = DeploymentNotice("ann@left (process 7)", "abc", "done", over=True)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def deploy(board: ScalingBoard, notice: DeploymentNotice = STAGE) -> dict[str, int]:
    if not notice.over:
        asyncio.run(board.look())
    return asyncio.run(board.deploy(notice))


def look(board: ScalingBoard, cluster: FakeCluster, later_s: float = 1.0) -> None:
    cluster.now += later_s
    asyncio.run(board.look())


def rows(board: ScalingBoard) -> list[tuple[str, int, int, str, str]]:
    entries = board.decisions(ReadDecisions(limit=9))
    return [(one["pool"], one["before"], one["target"], one["kind"], one["by"]) for one in reversed(entries)]


def events(board: ScalingBoard) -> list[str]:
    return [one["text"] for one in reversed(board.events(ReadEvents())) if one["kind"] == "deployed"]


def test_a_deployments_targets_are_neither_held_nor_set_past_the_board(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    assert deploy(board) == {"prefill": 1, "decode": 3, "kvcache": 1}
    cluster.set_past_the_board("decode", 3)
    look(board, cluster)
    assert rows(board) == [("decode", 1, 3, "deployed", "deployment")]
    assert not any(pool["hold"] for pool in board.state()["pools"])
    deploy(board, OVER)
    look(board, cluster)
    cluster.set_past_the_board("decode", 2)
    look(board, cluster)
    cluster.set_past_the_board("decode", 3)
    look(board, cluster)
    assert [kind for *_, kind, _ in rows(board)] == ["deployed", "held", "held"], "it was over"
    who = "ann@left (process 7) deploys configuration abc"
    assert events(board) == [f"{who}: decode, 1 of 2", f"{who}: done"]


def test_what_changes_at_the_end_is_seen_after_the_end(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    deploy(board)
    cluster.set_past_the_board("decode", 3)
    deploy(board, OVER)
    look(board, cluster)
    assert [kind for *_, kind, _ in rows(board)] == ["deployed"]


def test_events_and_expected_targets_outlive_the_board(cluster: FakeCluster) -> None:
    kept = KeptValues()
    first = board_of(cluster, kept)
    cluster.set_past_the_board("decode", 2)
    look(first, cluster)
    cluster.place("decode", replica("d2", "b"))
    look(first, cluster)
    before = first.events(ReadEvents())
    assert before, "d1 has died"
    deploy(first)
    second = board_of(cluster, kept)
    assert second.events(ReadEvents())[1:] == before
    cluster.set_past_the_board("decode", 3)
    look(second, cluster)
    assert rows(second)[-1] == ("decode", 2, 3, "deployed", "deployment")


def test_the_board_sets_no_target_while_serve_gets_the_stage(cluster: FakeCluster) -> None:
    cluster.place("decode", replica("d1"), replica("d2"))
    cluster.set_past_the_board("decode", 2)
    board = board_of(cluster, spread_after_s=5.0)
    deploy(board, DeploymentNotice("ann", "abc", "prefill, 1 of 1"))
    wish = PoolTarget("prefill", 1, 2, ScaleKind.BURST, "because")
    look(board, cluster, QUIET_S - 1)
    asyncio.run(board.apply([wish]))
    assert cluster.calls == []
    look(board, cluster)
    asyncio.run(board.apply([wish]))
    assert cluster.calls == [("decode", 3), ("prefill", 2)]


def test_a_person_may_scale_meanwhile_and_a_later_stage_keeps_that(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    deploy(board)
    cluster.set_past_the_board("decode", 3)
    look(board, cluster)
    asyncio.run(board.answer(ScalePool("decode", 2, None, "cli")))
    assert deploy(board, DeploymentNotice("ann", "abc", "gateway, 2 of 2"))["decode"] == 2
    assert [kind for *_, kind, _ in rows(board)] == ["deployed", "held"]


def test_the_end_of_one_whose_lease_has_passed_changes_nothing(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    deploy(board)
    deploy(board, DeploymentNotice("ben@right (process 9)", "abc", "ended at decode, 1 of 2 (StartError)", over=True))
    look(board, cluster)
    cluster.set_past_the_board("decode", 3)
    look(board, cluster)
    assert [kind for *_, kind, _ in rows(board)] == ["deployed"]


def test_a_first_look_is_waited_for_but_not_for_ever() -> None:
    silent = [ClusterSilentError("the board is new"), ClusterSilentError("still")]

    async def look() -> None:
        if silent:
            raise silent.pop()

    assert asyncio.run(looked(look, 60.0, 0.0))
    silent += [ClusterSilentError("no controller")] * 9
    assert not asyncio.run(looked(look, -1.0, 0.0))


def test_what_is_no_pool_keeps_its_target_too(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.sight = replace(cluster.sight, others={"gateway": deployment(3)})
    assert deploy(board)["gateway"] == 3
