"""Parsing of Serve's own description of a deployment."""

import pytest

from serving.cluster.membership import Member
from serving.ids import NodeId, ReplicaId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember, SeenNode
from serving.scaling.core.page_state import hardware, host_rows
from serving.scaling.live.observe import REMEMBER_S, RayCluster, seen_deployment, seen_members, with_full_disks
from tests.scaling.live.case import config, deployment, member, replica


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("STARTING", ReplicaPhase.STARTING),
        ("RECOVERING", ReplicaPhase.STARTING),
        ("RUNNING", ReplicaPhase.SERVING),
        ("UPDATING", ReplicaPhase.SERVING),
        ("STOPPING", ReplicaPhase.DRAINING),
        ("PENDING_MIGRATION", ReplicaPhase.DRAINING),
    ],
)
def test_phases(state: str, phase: ReplicaPhase) -> None:
    from ray.serve._private.common import ReplicaState

    for told in (state, ReplicaState(state)):
        one = {"replica_id": "abc", "state": told, "node_id": "n", "pid": 7, "start_time_s": 3.5}
        seen = seen_deployment({"target_num_replicas": 2, "replicas": [one]})
        assert seen.target == 2
        assert seen.replicas[0].phase is phase
        assert (seen.replicas[0].node, seen.replicas[0].pid, seen.replicas[0].started_at) == ("n", 7, 3.5)


def test_every_state_of_serve_is_known() -> None:
    from ray.serve._private.common import ReplicaState

    assert {state.value for state in ReplicaState} == {
        "STARTING", "UPDATING", "RECOVERING", "RUNNING", "STOPPING", "STOPPED", "PENDING_MIGRATION",
    }  # fmt: skip


def test_a_replica_without_a_place() -> None:
    seen = seen_deployment({"target_num_replicas": 1, "replicas": [{"replica_id": "abc", "state": "STARTING"}]})
    assert seen.replicas[0].node is None
    assert seen.starting == 1


def test_members_go_by_the_name_that_serve_knows() -> None:
    one = Member(ReplicaId("decode#abc"), "decode", NodeId("n"), "h", 1, "i", {"running": 2})
    ((name, seen),) = seen_members([one]).items()
    assert (name, seen.pool, seen.facts["running"]) == ("abc", "decode", 2)


def test_a_membership_that_was_started_again_does_not_empty_the_pools() -> None:
    """For one or two polls it did, and sequences that seemed to leave and return were a burst to the policy."""
    cluster, there = RayCluster("app", ["decode"], with_cache=False), {"decode": deployment(1, replica("a"))}
    one = member("a", "decode", running=5)

    def poll(listed: bool, at: float, known: bool = True, here: bool = True) -> list[str]:
        before = ClusterSnapshot(0.0, members={"a": one} if known else {})
        found = cluster._members({"a": one} if listed else {}, before, there if here else {}, at)
        return list(found)

    assert poll(listed=False, known=False, at=0.0) == []
    assert poll(listed=True, known=False, at=1.0) == ["a"]
    assert poll(listed=False, at=1.0 + REMEMBER_S) == ["a"]
    assert poll(listed=False, at=1.1 + REMEMBER_S) == []
    assert poll(listed=True, at=20.0) == ["a"]
    assert poll(listed=False, at=21.0, here=False) == [], "Serve has it no longer"


def test_a_full_disk_is_told_by_whoever_is_there() -> None:
    """For the board's own host the board itself reports it: every instance there may have died of it."""
    nodes = tuple(SeenNode(NodeId(name), 8, 512) for name in ("head", "other", "third"))
    told = [
        SeenMember(f"d#{place}", "decode", "first", {"disk_full": line}, NodeId(place))
        for place, line in (("head", ""), ("other", "the disk is full"), ("third", ""))
    ]
    seen = with_full_disks(nodes, told, (NodeId("head"), "this disk is full"))
    assert [node.disk_full for node in seen] == ["this disk is full", "the disk is full", ""]
    assert with_full_disks(nodes, [], (NodeId("head"), "")) == nodes
    snapshot = ClusterSnapshot(1.0, nodes=seen)
    assert [row.disk_full for row in host_rows(config(), snapshot, 1.0)] == [node.disk_full for node in seen]
    assert hardware(config(), snapshot, 1.0)["nodes"][1]["disk_full"] == "the disk is full", "as /pools shows it"
