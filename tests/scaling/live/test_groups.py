"""Instances of several ranks: pools are counted in groups, and measurements of ranks are summed."""

from dataclasses import replace
from typing import Any

from serving.cluster.membership import Member
from serving.config.serve import ServeConfig
from serving.ids import NodeId, ReplicaId
from serving.scaling.core.capacity import Abilities
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember
from serving.scaling.core.event_log import REPLACED_WITHIN_S, EventKind, EventLog
from serving.scaling.core.history import BusyShares
from serving.scaling.core.node_room import NodeRoom
from serving.scaling.core.page_state import pool_rows
from serving.scaling.core.replica_room import ReplicaSize, fits, used
from serving.scaling.core.signals import CacheReading, PolicyTime, scaling_signals, sizes_of
from serving.scaling.live.observe import at_its_ranks, seen_members
from serving.values.signals import ScalingSignals, Traffic
from serving.values.traffic import InstanceNotice
from tests.scaling.live.case import config, deployment, nodes, replica, started

FACTS = {
    "group": "decode#old", "ranks": 2, "shell": "new", "shell_pid": 5, "running": 3, "waiting": 1,
    "kv_blocks_used": 5, "kv_blocks_total": 10, "hbm_used_bytes": 7, "hbm_capacity_bytes": 9, "queued_tokens": 4,
}  # fmt: skip


def rank(number: int, incarnation: str = "1", **facts: Any) -> SeenMember:
    """A rank of a group that a shell called `new` has taken over."""
    told = {**FACTS, "rank": number, "pid": 70 + number, "npus": [f"n1.npu{number}"], **facts}
    return SeenMember(f"decode#old.r{number}", "decode", incarnation, told, NodeId("b"))


def snapshot(at: float, *members: SeenMember) -> ClusterSnapshot:
    pools = {**started(), "decode": deployment(1, replica("new", "a"))}
    return ClusterSnapshot(at, pools, nodes(), {one.name.rpartition("#")[2]: one for one in members})


def two_ranks() -> ServeConfig:
    one = config()
    return replace(one, decode=replace(one.decode, ep=2))


def signals(settings: ServeConfig, seen: ClusterSnapshot) -> ScalingSignals:
    room = NodeRoom(settings.autoscaler, sizes_of(settings), lambda _pool, _now: None)
    return scaling_signals(settings, seen, Traffic(), Abilities(), CacheReading(), room, {}, PolicyTime(1.0))


def test_ranks_belong_to_the_shell_that_holds_them_now() -> None:
    listed = Member(ReplicaId("decode#old.r1"), "decode", NodeId("b"), "h", 1, "i", dict(rank(1).facts))
    seen = seen_members([listed])
    assert (seen["old.r1"].serve_name, seen["old.r1"].node) == ("new", "b")
    assert [one.name for one in snapshot(1.0, rank(1), rank(0)).instances_of("new")] == [
        "decode#old.r0",
        "decode#old.r1",
    ]
    assert snapshot(1.0, rank(0)).instances_of("p1") == []


def test_hardware_is_taken_where_the_ranks_are() -> None:
    here = snapshot(1.0, rank(0), rank(1))
    decode = here.deployments["decode"]
    assert decode.replicas[0].node == "a", "where the shell is"
    moved = at_its_ranks(decode, here.members.values())
    assert moved.replicas[0].node == "b"
    assert at_its_ranks(here.deployments["prefill"], here.members.values()) == here.deployments["prefill"]
    assert sizes_of(two_ranks())["decode"] == ReplicaSize(8, 512, 2)
    assert fits("decode", sizes_of(two_ranks()), {"decode": moved}, nodes(2)) == 2


def test_a_group_that_has_grown_takes_more_hardware() -> None:
    here = snapshot(1.0, *(rank(number, ranks=4) for number in range(3)))
    decode = at_its_ranks(here.deployments["decode"], here.members.values())
    assert decode.replicas[0].ranks == 4, "one was lost, and its place is still there"
    sizes = sizes_of(two_ranks())
    assert used(sizes, {"decode": decode}) == ReplicaSize(16, 1024)
    assert fits("decode", sizes, {"decode": decode}, nodes(2, 16, 2048)) == 3, "two on the other node"
    seen = ClusterSnapshot(1.0, {**here.deployments, "decode": decode}, here.nodes, here.members)
    row = shown(seen)
    assert (row["npus"], row["ub_memory_mib"], row["dead"]) == (16, 1024, 0)
    told = signals(two_ranks(), seen)
    assert next(pool for pool in told.pools if pool.pool == "decode").seats == 4 * 32
    shrunk = sizes["decode"].of(replace(decode.replicas[0], ranks=1))
    assert shrunk == sizes["decode"], "it keeps the place that it began with"


def test_a_scaler_is_told_of_groups() -> None:
    settings = two_ranks()
    told = signals(settings, snapshot(1.0, rank(0), rank(1)))
    pool = next(one for one in told.pools if one.pool == "decode")
    assert (pool.target, pool.running, pool.npus_per_instance) == (1, 1, 8)
    assert (pool.sequences, pool.queued_tokens, pool.kv_blocks_total) == (8, 8, 20)
    assert (pool.seats, pool.max_sequences, pool.crowd) == (64, 64, 64)
    one = signals(config(), snapshot(1.0, rank(0)))
    assert next(pool for pool in one.pools if pool.pool == "decode").seats == 32


def shown(seen: ClusterSnapshot, **lost: EventKind) -> dict[str, Any]:
    names = {name.replace("_", "."): kind for name, kind in lost.items()}
    rows = pool_rows(two_ranks(), seen, {}, {}, {}, None, names, BusyShares(), {})
    return next(one for one in rows if one["pool"] == "decode")


def test_the_page_shows_ranks_below_their_group() -> None:
    row = shown(snapshot(1.0, rank(0), rank(1, draining=True)), old_r0=EventKind.DIED)
    assert (row["target"], row["running"], row["dead"], row["npus"], row["npus_per_instance"]) == (1, 1, 0, 8, 8)
    (group,) = row["replicas"]
    assert (group["name"], group["state"], group["sequences"], group["kv_fill"]) == ("new", "serving", 8, 0.5)
    assert (group["npus"], group["hbm_used_bytes"]) == (["n1.npu0", "n1.npu1"], 14)
    ranks = [(one["name"], one["state"], one["pid"], one["npus"]) for one in group["ranks"]]
    assert ranks == [("old.r0", "dead", 70, ["n1.npu0"]), ("old.r1", "draining", 71, ["n1.npu1"])]
    leaving = shown(snapshot(1.0, rank(0, draining=True), rank(1, draining=True)))
    assert leaving["replicas"][0]["state"] == "draining"


def test_busy_is_the_average_of_the_ranks() -> None:
    busy = BusyShares()
    busy.observe(snapshot(0.0, rank(0, busy_s=0.0), rank(1, busy_s=0.0)))
    busy.observe(snapshot(10.0, rank(0, busy_s=10.0), rank(1, busy_s=5.0)))
    rows = pool_rows(two_ranks(), snapshot(10.0, rank(0), rank(1)), {}, {}, {}, None, {}, busy, {})
    assert next(one for one in rows if one["pool"] == "decode")["replicas"][0]["busy"] == 0.75


def test_a_rank_that_died_is_lost_until_its_shell_has_replaced_it() -> None:
    log = EventLog(1)
    log.add_notice(InstanceNotice("died", "decode", ReplicaId("decode#old.r1"), "closed by the peer", 2, 40), 10.0)
    before = snapshot(10.0, rank(0), rank(1))
    for now in (snapshot(11.0, rank(0), rank(1)), snapshot(16.0, rank(0))):
        log.observe(before, now)
        before = now
        assert log.lost() == {"old.r1": EventKind.DIED}
    log.observe(before, snapshot(17.5, rank(0), rank(1, "2")))
    assert log.lost() == {}
    assert [(one.kind, one.replica, one.text) for one in reversed(log.newest())] == [
        (EventKind.DIED, "old.r1", "closed by the peer"),
        (EventKind.REPLACED, "old.r1", "serves again, 7.5 s after the loss"),
    ]


def test_a_rank_whose_group_has_gone_is_forgotten() -> None:
    log = EventLog(1)
    log.add_notice(InstanceNotice("died", "decode", ReplicaId("decode#old.r1"), "closed by the peer"), 10.0)
    log.observe(snapshot(10.0), snapshot(11.0 + REPLACED_WITHIN_S))
    assert log.lost() == {}
    assert len(log.newest()) == 1
