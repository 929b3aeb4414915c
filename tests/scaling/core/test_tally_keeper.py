"""Counters of the whole system that gateways export."""

from dataclasses import replace
from itertools import pairwise

from serving.ids import NodeId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenDeployment, SeenNode, SeenReplica
from serving.scaling.core.start_keeper import TallyKeeper
from serving.values.system_tally import START_BOUNDS_S, TOTAL
from tests.scaling.live.case import member

OWN = {"process": 0.5, "imports": 1.0, "weights": 2.0}


def look(at: float, nodes: str, *replicas: SeenReplica) -> ClusterSnapshot:
    seen = tuple(SeenNode(NodeId(name), 8, 1024) for name in nodes)
    members = {one.name: member(one.name, "decode", start_s=OWN) for one in replicas}
    return ClusterSnapshot(at, {"decode": SeenDeployment(2, replicas)}, seen, members)


def replica(name: str, phase: ReplicaPhase, began: float = 0.0) -> SeenReplica:
    return SeenReplica(name, phase, NodeId("a"), 1, began)


def test_nodes_that_come_and_go_are_counted_from_the_second_look_on() -> None:
    keeper, looks = (
        TallyKeeper(),
        [ClusterSnapshot(0.0), look(1.0, "ab"), look(2.0, "bc"), look(3.0, "b"), look(4.0, "b")],
    )
    for before, snapshot in pairwise(looks):
        keeper.observe(before, snapshot)
    tally = keeper.tally(looks[-1], {"decode": {"burst": 2}})
    assert (tally.nodes, tally.npus, tally.nodes_joined, tally.nodes_lost) == (1, 8, 1, 2)
    assert tally.decisions == {"decode": {"burst": 2}}


def test_nodes_that_were_asked_to_go_are_not_lost() -> None:
    keeper = TallyKeeper()
    keeper.observe(look(1.0, "ab"), replace(look(2.0, "a"), left_nodes=frozenset({NodeId("b")})))
    assert keeper.tally(look(2.0, "a"), {}).nodes_lost == 0


def test_a_start_lasts_from_serves_order_to_serving() -> None:
    keeper = TallyKeeper()
    looks = [
        look(10.0, "a", replica("x", ReplicaPhase.STARTING, 8.0), replica("old", ReplicaPhase.SERVING)),
        look(12.0, "a", replica("x", ReplicaPhase.STARTING, 8.0)),
        look(14.0, "a", replica("x", ReplicaPhase.SERVING, 8.0)),
        look(15.0, "a", replica("x", ReplicaPhase.SERVING, 8.0)),
    ]
    for before, snapshot in pairwise([ClusterSnapshot(0.0), *looks]):
        keeper.observe(before, snapshot)
    tally = keeper.tally(looks[-1], {})
    assert {phase: times.sum_s for phase, times in tally.starts["decode"].items() if phase != TOTAL} == {
        **OWN,
        "placing": 2.5,
    }
    times = tally.starts["decode"][TOTAL]
    assert times.sum_s == 6.0
    assert sum(times.counts) == 1
    assert times.counts[START_BOUNDS_S.index(10.0)] == 1
    assert tally.replicas == {"decode": {"starting": 0, "serving": 1, "draining": 0}}
