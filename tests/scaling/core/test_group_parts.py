"""Decode groups whose size the scaler sets: what it is told, what is ordered, and what holds the pool."""

from dataclasses import replace

from serving.ids import NodeId
from serving.scaling.core.capacity import Abilities
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase, SeenMember
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.group_parts import GroupParts, group_parts
from serving.scaling.core.node_room import NodeRoom
from serving.scaling.core.signals import CacheReading, PolicyTime, scaling_signals, sizes_of
from serving.values.scaling_operations import ResizeRankGroup
from serving.values.signals import PoolSignals, ScalingSignals, Traffic
from tests.scaling.live.case import config, deployment, grouped, nodes, replica, started

UNIT = "; counted in parts of 1 NPU"


def ranks(group: str, there: int, size: int, wanted: int, node: str = "b") -> list[SeenMember]:
    told = {"group": f"decode#{group}", "shell": group, "ranks": size, "ranks_wanted": wanted, "kv_blocks_total": 10}
    return [
        SeenMember(f"decode#{group}.r{n}", "decode", "1", {**told, "rank": n, "draining": n >= size}, NodeId(node))
        for n in range(there)
    ]


def snapshot(*members: SeenMember, target: int = 1, npus: int = 8) -> ClusterSnapshot:
    shells = dict.fromkeys(str(one.facts["shell"]) for one in members)
    places = {str(one.facts["shell"]): one.node for one in members}
    seen = deployment(target, *(replica(name, str(places[name])) for name in shells))
    pools = {**started(), "decode": seen}
    return ClusterSnapshot(1.0, pools, nodes(2, npus), {one.name.rpartition("#")[2]: one for one in members})


def polled(*members: SeenMember, **more: int) -> tuple[GroupParts, ClusterSnapshot]:
    parts, seen = group_parts(grouped()), snapshot(*members, **more)
    assert parts is not None
    assert parts.see(seen) is None
    return parts, seen


def wanted(before: int, target: int) -> PoolTarget:
    return PoolTarget("decode", before, target, ScaleKind.BURST, "because")


def in_groups(seen: ClusterSnapshot) -> ScalingSignals:
    room = NodeRoom(grouped().autoscaler, sizes_of(grouped()), lambda _pool, _now: None)
    return scaling_signals(grouped(), seen, Traffic(), Abilities(), CacheReading(), room, {}, PolicyTime(1.0))


def told(parts: GroupParts, seen: ClusterSnapshot) -> PoolSignals:
    whole = in_groups(seen)
    return parts.signals(whole, seen).pool("decode")


def test_only_groups_of_ranks_that_a_scaler_sizes_have_parts() -> None:
    assert group_parts(config(decode_step_npus=1)) is None, "one process"
    assert group_parts(replace(grouped(), autoscaler=replace(grouped().autoscaler, policy="none"))) is None
    assert group_parts(replace(grouped(), autoscaler=replace(grouped().autoscaler, decode_step_npus=0))) is None


def test_a_scaler_is_told_of_parts() -> None:
    parts, seen = polled(*ranks("d", 3, 3, 5))
    pool = told(parts, seen)
    assert (pool.target, pool.running, pool.starting, pool.draining) == (5, 3, 2, 0)
    assert (pool.npus_per_instance, pool.low, pool.high, pool.seats) == (1, 2, 6, 32)
    whole = in_groups(seen)
    assert parts.signals(whole, seen).npus_free == whole.npus_free - 2
    parts, seen = polled(*ranks("d", 5, 3, 3))
    pool = told(parts, seen)
    assert (pool.target, pool.running, pool.starting, pool.draining) == (3, 3, 0, 2)


def test_a_target_becomes_an_order_until_the_group_shows_it() -> None:
    parts, seen = polled(*ranks("d", 2, 2, 2))
    assert parts.due(seen) == []
    assert parts.granted(wanted(2, 4), seen) == PoolTarget("decode", 2, 4, ScaleKind.BURST, f"because{UNIT}")
    order = [ResizeRankGroup("decode#d", 4)]
    assert parts.due(seen) == order
    assert parts.see(seen) is None, "it has not been shown yet"
    assert parts.due(seen) == order
    growing = snapshot(*ranks("d", 2, 2, 4))
    assert (parts.see(growing), parts.due(growing)) == (None, [])
    assert parts.granted(wanted(4, 3), growing) is not None
    assert parts.due(growing) == [], "a change that has started finishes first"
    assert parts.due(snapshot(*ranks("d", 4, 4, 4))) == [ResizeRankGroup("decode#d", 3)]
    assert parts.granted(wanted(2, 5), growing) is None, "the scaler saw another target"


def test_a_target_is_cut_to_what_fits_where_the_groups_are() -> None:
    parts, seen = polled(*ranks("d", 2, 2, 2, "a"), npus=5)  # node a: 2 NPUs of prefill; node b has no group
    to = parts.granted(wanted(2, 6), seen)
    assert to is not None
    assert (to.target, to.reason) == (3, f"because; 3 fit on the nodes of its groups, where these grow{UNIT}")
    assert parts.due(seen) == [ResizeRankGroup("decode#d", 3)]


def test_groups_that_serve_asks_for_beside_share_the_target() -> None:
    parts, _ = polled(*ranks("d", 4, 4, 4))
    both = snapshot(*ranks("d", 4, 4, 4), *ranks("e", 2, 2, 2), target=2)
    assert parts.see(both) is None
    assert parts.target == 6
    assert parts.due(both) == [ResizeRankGroup("decode#d", 3), ResizeRankGroup("decode#e", 3)]
    still_to_come = snapshot(*ranks("d", 4, 4, 4), target=2)
    come = replace(
        still_to_come.deployments["decode"], replicas=(replica("d", "b"), replica("e", None, ReplicaPhase.STARTING))
    )
    still_to_come = replace(still_to_come, deployments={**still_to_come.deployments, "decode": come})
    assert parts.due(still_to_come) == [ResizeRankGroup("decode#d", 3)]
    fewer = replace(both, deployments={**both.deployments, "decode": replace(both.deployments["decode"], target=1)})
    assert (parts.see(fewer), parts.target, parts.due(fewer)) == (None, 3, []), "which of them ends is not known yet"
    left = snapshot(*ranks("d", 4, 4, 4))
    assert (parts.see(left), parts.due(left)) == (None, [ResizeRankGroup("decode#d", 3)])


def test_a_group_in_place_of_one_that_was_lost_gets_its_size() -> None:
    parts, _ = polled(*ranks("d", 4, 4, 4))
    new = snapshot(*ranks("e", 2, 2, 2))
    assert parts.see(new) is None
    assert (parts.target, parts.due(new)) == (4, [ResizeRankGroup("decode#e", 4)])


def test_a_group_of_another_size_than_ordered_holds_the_pool() -> None:
    parts, _ = polled(*ranks("d", 2, 2, 2))
    by_hand = snapshot(*ranks("d", 2, 2, 5))
    to = parts.see(by_hand)
    assert to is not None
    assert (to.before, to.target, to.kind) == (2, 5, ScaleKind.HELD)
    assert to.reason == f"decode#d: resized past the board, or could not grow; held{UNIT}"
    assert parts.see(by_hand) is None, "said once"
    gave_up = snapshot(*ranks("d", 2, 2, 2))
    assert (parts.see(gave_up), parts.target) == (PoolTarget("decode", 5, 2, ScaleKind.HELD, to.reason), 2)


def test_a_group_resized_by_hand_keeps_its_size_until_the_next_target() -> None:
    seen = [*ranks("d", 2, 2, 2), *ranks("e", 2, 2, 2)]
    parts, _ = polled(*seen, target=2)
    most = grouped().autoscaler.max_decode_npus + 1
    by_hand = snapshot(*seen[:2], *ranks("e", most, most, most), target=2, npus=64)
    assert parts.see(by_hand) is not None
    assert (parts.target, parts.due(by_hand)) == (2 + most, []), "neither cut to the policy's bound nor shared"
    parts.granted(wanted(parts.target, 4), by_hand)
    assert parts.due(by_hand) == [ResizeRankGroup("decode#e", 2)]


def test_what_a_group_refuses_is_not_asked_again() -> None:
    parts, seen = polled(*ranks("d", 2, 2, 2))
    parts.granted(wanted(2, 4), seen)
    (order,) = parts.due(seen)
    assert parts.refused(order, "no room", seen) == PoolTarget("decode", 4, 2, ScaleKind.HELD, f"no room; held{UNIT}")
    assert parts.due(seen) == []
