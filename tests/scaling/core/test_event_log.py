"""Events: reported by gateways, detected in the cluster, one for each occurrence."""

from dataclasses import replace
from typing import Any

from serving.ids import NodeId, ReplicaId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.event_log import KEPT_EVENTS, REPLACED_WITHIN_S, EventKind, EventLog
from serving.values.traffic import InstanceNotice, NoticeKind
from tests.scaling.live.case import DRAINING, STARTING, deployment, nodes, replica, started


def notice(name: str, kind: NoticeKind = "died", streams: int = 0, tokens: int = 0) -> InstanceNotice:
    return InstanceNotice(kind, "decode", ReplicaId(f"cloudmatrix#decode#{name}"), "connection lost", streams, tokens)


def snapshot(at: float, **deployments: Any) -> ClusterSnapshot:
    return ClusterSnapshot(at, {**started(), **deployments}, nodes())


def told(log: EventLog) -> list[tuple[str, str, str]]:
    """Oldest first: kind, replica, text."""
    return [(event.kind.value, event.replica, event.row()["text"]) for event in reversed(log.newest())]


def test_several_gateways_lose_one_replica_once() -> None:
    log = EventLog(1)
    log.add_notice(notice("d1", streams=2, tokens=1000), 10.0)
    log.add_notice(notice("d1", "frozen", streams=1, tokens=234), 10.2)
    log.add_notice(notice("d2"), 10.3)
    assert told(log) == [
        ("died", "d1", "connection lost; 3 streams moved, 1,234 tokens resumed"),
        ("died", "d2", "connection lost"),
    ]
    assert log.lost() == {"d1": EventKind.DIED, "d2": EventKind.DIED}
    assert [event.at for event in log.newest()] == [10.3, 10.0]


def test_a_gateway_that_tells_later_than_serve_tells_of_the_same() -> None:
    log = EventLog(1)
    log.observe(snapshot(1.0), snapshot(2.0, decode=deployment(1, replica("d2"))))
    log.add_notice(notice("d1", streams=2, tokens=50), 2.1)
    assert told(log) == [
        ("died", "d1", "its process ended; 2 streams moved, 50 tokens resumed"),
        ("replaced", "d2", "serves in place of d1, 0.0 s after the loss"),
    ]
    assert log.lost() == {}


def test_one_that_leaves_is_one_event_and_no_loss() -> None:
    log = EventLog(1)
    log.add_notice(notice("d1", "left", streams=2), 10.0)
    log.add_notice(notice("d1", "left", streams=1), 10.1)
    log.add_notice(notice("d2", "left"), 10.2)
    assert told(log) == [("left", "d1", "connection lost; 3 streams moved"), ("left", "d2", "connection lost")]
    assert log.lost() == {}


def test_what_is_scaled_up_later_replaces_nothing() -> None:
    log = EventLog(1)
    log.add_notice(notice("d1"), 10.0)
    both = deployment(2, replica("d1"), replica("d2"))
    log.observe(snapshot(9.0, decode=both), snapshot(11.0, decode=both))
    log.observe(snapshot(11.0, decode=both), snapshot(12.0, decode=deployment(1, replica("d2"))))
    log.observe(
        snapshot(12.0, decode=deployment(1, replica("d2"))),
        snapshot(20.0, decode=deployment(2, replica("d2"), replica("d3"))),
    )
    assert [kind for kind, _, _ in told(log)] == ["died"]


def test_every_audit_is_told() -> None:
    log = EventLog(1)
    for finding in ("sound", "sound", "2 problems"):
        log.add_notice(InstanceNotice("audit", "kvcache", ReplicaId(""), finding), 10.0)
    assert [text for _, _, text in told(log)] == ["sound", "sound", "2 problems"]


def test_what_only_seemed_dead_comes_back() -> None:
    log = EventLog(1)
    log.add_notice(notice("d1", "frozen"), 10.0)
    log.add_notice(notice("d1", "back"), 12.0)
    log.add_notice(notice("d1", "back"), 12.1)
    assert [kind for kind, _, _ in told(log)] == ["frozen", "back"]
    assert log.lost() == {}
    log.observe(snapshot(12.0), snapshot(13.0, decode=deployment(2, replica("d1"), replica("d2"))))
    assert "replaced" not in [kind for kind, _, _ in told(log)], "nothing is owed for it"


def test_a_loss_is_replaced_by_the_next_replica_that_serves() -> None:
    log = EventLog(1)
    log.add_notice(notice("d1"), 10.0)
    dying = snapshot(10.5, decode=deployment(1, replica("d1"), replica("d2", phase=STARTING)))
    log.observe(snapshot(10.0), dying)
    assert log.lost().keys() == {"d1"}
    after = snapshot(13.0, decode=deployment(1, replica("d2")))
    log.observe(dying, after)
    assert told(log)[1:] == [("replaced", "d2", "serves in place of d1, 3.0 s after the loss")]
    assert log.lost() == {}
    more = snapshot(14.0, decode=deployment(2, replica("d2"), replica("d3")))
    log.observe(after, more)
    assert len(log.newest()) == 2, "one more is no replacement"


def test_a_late_one_replaces_nothing() -> None:
    log = EventLog(1)
    log.add_notice(notice("d1"), 10.0)
    late = 10.0 + REPLACED_WITHIN_S + 1
    log.observe(snapshot(late), snapshot(late, decode=deployment(2, replica("d1"), replica("d2"))))
    assert [kind for kind, _, _ in told(log)] == ["died"]


def test_what_no_gateway_tells_is_seen() -> None:
    log = EventLog(1)
    log.observe(ClusterSnapshot(0.0), snapshot(1.0))
    assert log.newest() == [], "the first look compares with nothing"
    log.observe(snapshot(1.0), snapshot(2.0, kvcache=deployment(1)))
    assert told(log) == [("died", "k1", "its process ended")]


def test_who_was_to_leave_has_not_died() -> None:
    log = EventLog(1)
    log.observe(snapshot(1.0), snapshot(2.0, decode=deployment(0)))
    leaving = snapshot(2.0, decode=deployment(1, replica("d1", phase=DRAINING)))
    log.observe(leaving, snapshot(3.0, decode=deployment(1)))
    log.observe(snapshot(3.0), replace(snapshot(4.0), deployments={}))
    assert log.newest() == []


def test_a_host_takes_its_hardware_with_it() -> None:
    log = EventLog(1)
    log.observe(snapshot(1.0), replace(snapshot(2.0), nodes=nodes(1)))
    assert told(log) == [("host lost", "b", "8 NPUs and 1 GiB of UB memory went with it")]


def test_a_host_that_was_asked_to_go_is_not_lost() -> None:
    log = EventLog(1)
    log.observe(
        ClusterSnapshot(1.0, nodes=nodes(2)), ClusterSnapshot(2.0, nodes=nodes(1), left_nodes=frozenset({NodeId("b")}))
    )
    log.observe(
        ClusterSnapshot(2.0, nodes=nodes(1)), ClusterSnapshot(3.0, nodes=nodes(1), left_nodes=frozenset({NodeId("b")}))
    )
    assert told(log) == [("left", "b", "Ray has taken the host back, or it was stopped")]


def test_poison_is_of_no_replica() -> None:
    log = EventLog(1)
    for _ in range(2):
        log.add_notice(InstanceNotice("poison", "", ReplicaId(""), "3 instances in a row"), 5.0)
    assert told(log) == [("poison", "", "3 instances in a row")] * 2
    assert log.lost() == {}


def test_the_ring_is_bounded_and_read_by_id() -> None:
    log = EventLog(100)
    for number in range(KEPT_EVENTS + 10):
        log.add_notice(notice(f"d{number}"), float(number))
    events = log.newest()
    assert len(events) == KEPT_EVENTS
    assert events[0].id == 100 + KEPT_EVENTS + 9
    assert [event.replica for event in log.newest(after=events[2].id)] == [events[0].replica, events[1].replica]
    assert log.newest("prefill") == []
    assert len(log.newest("decode", limit=7)) == 7
