"""A pool that a lost host has crowded is spread over hosts again by the fleet, and only by it."""

from dataclasses import replace

import pytest

from serving.cluster.gcs_store import KeptValues
from serving.config.gateway import GatewayConfig
from serving.ids import NodeId
from serving.scaling.core import pool_spread
from serving.scaling.core.cluster_snapshot import SeenNode
from serving.scaling.core.decision import ScaleKind
from serving.scaling.core.page_state import host_rows
from serving.values.scaling_operations import HoldPool, ScalePool
from tests.scaling.core.fleet_case import FleetCase
from tests.scaling.live.case import FakeCluster, config, deployment, nodes, replica

CROWDED = (replica("d1"), replica("d2", started_at=1.0))
NEW = replica("d3", "b", started_at=2.0)


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes, and both decode instances on the first one."""
    crowded = FakeCluster()
    crowded.place("decode", *CROWDED)
    crowded.set_past_the_board("decode", 2)
    return crowded


def spreading(cluster: FakeCluster, kept: KeptValues | None = None) -> FleetCase:
    return FleetCase(cluster, kept, policy="none", spread_after_s=30.0)


def test_one_more_and_then_one_less(cluster: FakeCluster) -> None:
    case = spreading(cluster)
    case.look(31.0)
    assert cluster.calls == [("decode", 3)]
    cluster.place("decode", *CROWDED, NEW)
    case.look(5.0)
    assert (cluster.calls[-1], cluster.leaving) == (("decode", 2), ("d2",))
    assert [(one.kind, one.reason) for one in case.entries[:2]] == [
        (ScaleKind.SPREAD, "one leaves the fullest host"),
        (ScaleKind.SPREAD, "one more, so that one can leave the fullest host"),
    ]
    cluster.place("decode", CROWDED[0], NEW)
    case.look(99.0)
    assert len(cluster.calls) == 2


def test_a_pool_that_a_person_holds_stays(cluster: FakeCluster) -> None:
    case = spreading(cluster)
    case.hold("decode", 60.0)
    case.look(31.0)
    assert cluster.calls == []
    case.look(60.0)
    assert cluster.calls == [("decode", 3)]


@pytest.mark.parametrize("wish", [ScalePool("decode", 3, None, "cli"), HoldPool("decode", 60.0, "cli")])
def test_what_a_person_says_amid_a_move_stands(cluster: FakeCluster, wish: ScalePool | HoldPool) -> None:
    case = spreading(cluster)
    case.look(31.0)
    case.answer(wish)
    cluster.place("decode", *CROWDED, NEW)
    case.look(5.0)
    assert ("decode", 2) not in cluster.calls


def test_a_board_goes_on_where_the_one_before_it_ended(cluster: FakeCluster) -> None:
    kept = KeptValues()
    spreading(cluster, kept).look(31.0)
    cluster.place("decode", *CROWDED, NEW)
    spreading(cluster, kept)
    assert cluster.calls == [("decode", 3), ("decode", 2)]


def test_who_does_not_want_it_pays_nothing(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pool_spread, "hosts_with_room")
    case = FleetCase(cluster, policy="none")
    case.look(999.0)
    assert cluster.calls == []


def test_gateways_are_spread_as_pools_are_but_not_to_a_host_without_cpus() -> None:
    cluster, g1, g2, g3 = FakeCluster(), replica("g1"), replica("g2", started_at=1.0), replica("g3", "b")
    head = SeenNode(NodeId("c"), 0, 0, head=True, cpus=0)
    alone = (cluster.snapshot.nodes[0], head)
    cluster.snapshot = replace(cluster.snapshot, nodes=alone, others={"gateway": deployment(2, g1, g2)})
    two = replace(config("none", spread_after_s=30.0), gateway=GatewayConfig(replicas=2))
    case = FleetCase(cluster, whole=two)
    case.look(99.0)
    assert cluster.calls == []
    cluster.snapshot = replace(cluster.snapshot, nodes=(*nodes(2), head))
    case.look(1.0)
    case.look(31.0)
    assert cluster.calls == [("gateway", 3)]
    cluster.snapshot = replace(cluster.snapshot, others={"gateway": deployment(3, g1, g2, g3)})
    case.look(5.0)
    assert (cluster.calls[-1], cluster.leaving) == (("gateway", 2), ("g2",))
    assert [one.pool for one in case.entries] == ["gateway", "gateway"]
    assert [one.gateways for one in host_rows(two, case.fleet.snapshot, cluster.now)] == [2, 1, 0]
