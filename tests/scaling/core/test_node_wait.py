"""Targets beyond the present room, where Ray may add nodes: accepted, waited for, taken back."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.cli.decisions import line
from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import SeenNode
from serving.scaling.core.node_room import NodeWait, NodeWaits
from serving.values.scaling_operations import ScaleAnswer, ScaleRefusal
from tests.scaling.core.fleet_case import FleetCase, wanted
from tests.scaling.live.case import FakeCluster, replica


@pytest.fixture
def cluster() -> FakeCluster:
    """Two nodes of 8 NPUs; decode takes 4, so that 3 of it fit beside prefill."""
    return FakeCluster()


def reasons(case: FleetCase) -> list[str]:
    return [entry.reason for entry in case.entries]


def shown(case: FleetCase) -> list[dict[str, Any]]:
    return [case.fleet.room.row(entry, case.cluster.now) for entry in case.entries]


def test_fixed_nodes_refuse_as_ever(cluster: FakeCluster) -> None:
    told = FleetCase(cluster, max_decode=9).scale("decode", 4)
    assert isinstance(told, ScaleRefusal)
    assert (told.kind, told.fits) == ("no_room", 3)


def test_ray_may_add_a_node(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, nodes="ray", max_decode=5)
    refused = case.scale("decode", 6)
    assert isinstance(refused, ScaleRefusal)
    assert refused.fits == 5, "the pool's most is the most that is asked of Ray"
    told = case.scale("decode", 4)
    assert isinstance(told, ScaleAnswer)
    assert told.message.endswith(
        "an instance needs 4 NPUs whole on one node, at most 2 are free on any then: waits for a node"
    )
    assert cluster.calls == [("decode", 4)]
    case.look(1.0)
    case.look(22.0)
    assert (case.fleet.snapshot.deployments["decode"].target, case.waits_s()) == (4, 23.0)
    assert [one["waits_s"] for one in shown(case)] == [23.0]
    assert line(shown(case)[0]).endswith(": waits for a node (23 s)")
    third = SeenNode(NodeId("c"), 8, 1024)
    cluster.snapshot = replace(cluster.snapshot, nodes=(*cluster.snapshot.nodes, third))
    case.look(2.0)
    assert case.waits_s() is None
    assert [one["waits_s"] for one in shown(case)] == [None, None]
    assert line(shown(case)[0]).endswith("room came after 25 s")
    case.look(1000.0)
    assert cluster.calls == [("decode", 4)]


def test_a_target_for_which_no_node_comes_is_taken_back(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, nodes="ray", node_wait_s=60.0, max_decode=9)
    case.apply(wanted("decode", 1, 5))
    assert "waits for a node" in reasons(case)[0]
    case.look(59.0)
    assert cluster.calls == [("decode", 5)]
    case.look(1.0)
    assert cluster.calls == [("decode", 5), ("decode", 3)]
    assert reasons(case)[0].startswith("no node came for 60 s, 3 fit: ")
    case.look(500.0)
    assert cluster.calls == [("decode", 5), ("decode", 3)]
    assert case.waits_s() is None


def test_a_wait_that_nobody_asked_for_is_told_too_and_the_least_is_not_taken_back(cluster: FakeCluster) -> None:
    cluster.snapshot = replace(cluster.snapshot, nodes=())
    cluster.place("decode")
    case = FleetCase(cluster, nodes="ray", node_wait_s=60.0)
    told = [entry for entry in case.entries if entry.pool == "decode"]
    assert [entry.reason.endswith(": waits for a node") for entry in told] == [True]
    case.look(30.0)
    assert len([entry for entry in case.entries if entry.pool == "decode"]) == 1
    case.look(30.0)
    assert cluster.calls == []
    assert "no node came for 60 s, and 1 is the least of decode: waits for a node" in reasons(case)
    cluster.snapshot = replace(cluster.snapshot, nodes=(SeenNode(NodeId("c"), 8, 1024),))
    case.look(1.0)
    case.look(5.0)
    assert case.waits_s() is None


def test_a_pool_that_shrinks_gives_a_whole_host_back(cluster: FakeCluster) -> None:
    cluster.snapshot = replace(cluster.snapshot, nodes=(*cluster.snapshot.nodes, SeenNode(NodeId("c"), 8, 1024, 2)))
    cluster.place("decode", replica("d1"), replica("d2", "c"), replica("d3", "b"))
    cluster.set_past_the_board("decode", 3)
    case = FleetCase(cluster, nodes="ray", max_decode=3)
    case.scale("decode", 2)
    assert cluster.leaving == ("d2",), "on b is a memory server, on a prefill"
    assert reasons(case)[0].endswith("; n2 is empty then")
    case.scale("decode", 3)
    assert not cluster.leaving


def test_where_nobody_takes_hosts_back_the_fullest_gives(cluster: FakeCluster) -> None:
    cluster.place("decode", replica("d1"), replica("d2", started_at=1.0), replica("d3", "b", started_at=2.0))
    cluster.set_past_the_board("decode", 3)
    case = FleetCase(cluster)
    case.scale("decode", 2)
    assert cluster.leaving == ("d2",)
    assert "empty" not in reasons(case)[0]


def test_whoever_wants_less_waits_for_nothing(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, nodes="ray", max_decode=9)
    case.scale("decode", 5)
    case.look(1.0)
    case.scale("decode", 1)
    case.look(1.0)
    assert case.waits_s() is None
    assert "came" not in reasons(case)[0]


def test_a_target_set_past_the_board_waits_too(cluster: FakeCluster) -> None:
    case = FleetCase(cluster, nodes="ray", max_decode=4)
    cluster.set_past_the_board("decode", 9)
    case.look(1.0)
    assert cluster.calls == [("decode", 4)], "no more than the pool's most"
    cluster.place("decode", replica("d1"))
    case.look(5.0)
    assert case.waits_s() == 5.0


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
