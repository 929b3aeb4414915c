"""A deployment: its targets are no person's, and the fleet's own moves wait while Serve gets a stage."""

from dataclasses import replace

import pytest

from serving.cluster.gcs_store import KeptValues
from serving.scaling.core.fleet_values import StageTargets
from serving.scaling.core.holds import QUIET_S
from serving.values.system_tally import DeploymentNotice
from tests.scaling.core.fleet_case import FleetCase, wanted
from tests.scaling.live.case import FakeCluster, deployment, replica

STAGE = DeploymentNotice("ann@left (process 7)", "abc", "decode, 1 of 2", {"decode": 3})
OVER = DeploymentNotice("ann@left (process 7)", "abc", "done", over=True)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def deploy(case: FleetCase, notice: DeploymentNotice = STAGE) -> dict[str, int]:
    if not notice.over:
        case.look()
    (stage,) = case.tell(notice)
    assert isinstance(stage, StageTargets)
    return dict(stage.targets)


def test_a_deployments_targets_are_neither_held_nor_set_past_the_board(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    assert deploy(case) == {"prefill": 1, "decode": 3, "kvcache": 1}
    cluster.set_past_the_board("decode", 3)
    case.look(1.0)
    assert case.rows == [("decode", 1, 3, "deployed", "deployment")]
    assert case.held("decode") is None
    deploy(case, OVER)
    case.look(1.0)
    cluster.set_past_the_board("decode", 2)
    case.look(1.0)
    cluster.set_past_the_board("decode", 3)
    case.look(1.0)
    assert [kind for *_, kind, _ in case.rows] == ["deployed", "held", "held"], "it was over"


def test_what_changes_at_the_end_is_seen_after_the_end(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    deploy(case)
    cluster.set_past_the_board("decode", 3)
    deploy(case, OVER)
    case.look(1.0)
    assert [kind for *_, kind, _ in case.rows] == ["deployed"]


def test_expected_targets_outlive_the_board(cluster: FakeCluster) -> None:
    kept = KeptValues()
    deploy(FleetCase(cluster, kept))
    second = FleetCase(cluster, kept)
    cluster.set_past_the_board("decode", 3)
    second.look()
    assert second.rows == [("decode", 1, 3, "deployed", "deployment")]


def test_the_board_sets_no_target_while_serve_gets_the_stage(cluster: FakeCluster) -> None:
    cluster.place("decode", replica("d1"), replica("d2"))
    cluster.set_past_the_board("decode", 2)
    case = FleetCase(cluster, spread_after_s=5.0)
    deploy(case, DeploymentNotice("ann", "abc", "prefill, 1 of 1"))
    case.look(QUIET_S - 1)
    case.apply(wanted("prefill", 1, 2))
    assert cluster.calls == []
    case.look(1.0)
    case.apply(wanted("prefill", 1, 2))
    assert cluster.calls == [("decode", 3), ("prefill", 2)]


def test_a_person_may_scale_meanwhile_and_a_later_stage_keeps_that(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    deploy(case)
    cluster.set_past_the_board("decode", 3)
    case.look(1.0)
    case.scale("decode", 2)
    assert deploy(case, DeploymentNotice("ann", "abc", "gateway, 2 of 2"))["decode"] == 2
    assert [kind for *_, kind, _ in case.rows] == ["deployed", "held"]


def test_the_end_of_one_whose_lease_has_passed_changes_nothing(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    deploy(case)
    deploy(case, DeploymentNotice("ben@right (process 9)", "abc", "ended at decode, 1 of 2 (StartError)", over=True))
    case.look(1.0)
    cluster.set_past_the_board("decode", 3)
    case.look(1.0)
    assert [kind for *_, kind, _ in case.rows] == ["deployed"]


def test_what_is_no_pool_keeps_its_target_too(cluster: FakeCluster) -> None:
    case = FleetCase(cluster)
    cluster.snapshot = replace(cluster.snapshot, others={"gateway": deployment(3)})
    assert deploy(case)["gateway"] == 3
