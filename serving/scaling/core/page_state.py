"""The board's state as JSON, for the page, the command line and scripts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hardware.topology import npu_ids
from serving.config.serve import ServeConfig
from serving.config.upgrade_rules import GATEWAY
from serving.scaling.core.cluster_snapshot import (
    ClusterSnapshot,
    ReplicaPhase,
    SeenDeployment,
    SeenMember,
    SeenNode,
    SeenReplica,
)
from serving.scaling.core.event_log import EventKind
from serving.scaling.core.history import BusyShares
from serving.scaling.core.replica_room import ReplicaSize, offered, used
from serving.scaling.core.signals import INSIDE, KVCACHE, NOT_THERE, members_of, memory_fill, sizes_of, total
from serving.values.system_tally import HostRow

SHOWN = 50
"""Number of decisions, and of events, on the page."""
_WORKING = ("serving", "draining")


def pool_rows(
    config: ServeConfig,
    snapshot: ClusterSnapshot,
    room: Mapping[str, int],
    shortages: Mapping[str, str],
    holds: Mapping[str, dict[str, Any]],
    hit_rate: float | None,
    lost: Mapping[str, EventKind],
    busy: BusyShares,
    waits: Mapping[str, float | None],
) -> list[dict[str, Any]]:
    """One row per pool.

    Args:
        room: most replicas that fit, by pool.
        shortages: for pools where one more than the target does not fit, why.
        holds: `{"left_s", "by"}` of the held pools.
        hit_rate: share of looked-up tokens found in the KV-cache pool; None = no lookups.
        lost: replicas that are dead or frozen, by name; overrides Serve's state.
        busy: shares of time in which instances worked.
        waits: how long pools have waited for a node [s]; None = they do not wait.
    """
    rows = []
    for pool, size in sizes_of(config).items():
        seen = snapshot.deployments.get(pool, NOT_THERE)
        low, high = config.autoscaler.bounds(pool)
        dead = sum(one.phase is ReplicaPhase.SERVING and one.name in lost for one in seen.replicas)
        row = {
            "pool": pool,
            "kind": "cache" if pool == KVCACHE else "engine",
            "target": seen.target,
            "running": seen.count(ReplicaPhase.SERVING) - dead,
            "dead": dead,
            "starting": seen.starting,
            "draining": seen.count(ReplicaPhase.DRAINING),
            "low": low,
            "high": high,
            **_taken(size, seen),
            "npus_per_instance": size.npus,
            "hold": holds.get(pool),
            "fits": room.get(pool, 0),
            "shortage": shortages.get(pool),
            "waits_s": waits.get(pool),
        }
        load = _cache_load(snapshot, hit_rate) if pool == KVCACHE else _engine_load(snapshot, pool)
        for shown in load["replicas"]:
            if (kind := lost.get(shown["serve_name"])) is not None:
                shown["state"] = "frozen" if kind is EventKind.FROZEN else "dead"
            shown["busy"] = _busy(shown, snapshot, busy) if shown["state"] in _WORKING else None
            for rank in shown["ranks"]:
                if (kind := lost.get(rank["name"])) is not None:
                    rank["state"] = "frozen" if kind is EventKind.FROZEN else "dead"
        rows.append(row | load)
    return rows


def hardware(config: ServeConfig, snapshot: ClusterSnapshot, now: float) -> dict[str, Any]:
    """NPUs and UB memory in use and offered, in total and for each node, with the names of its NPUs.

    A lost node has a row but is not part of the totals.
    """
    all_used, all_offered = used(sizes_of(config), snapshot.deployments), offered(snapshot.nodes)
    nodes = [*snapshot.nodes, *(lost.seen for lost in snapshot.lost_nodes)]
    return {
        "npus": {"used": all_used.npus, "offered": all_offered.npus},
        "ub_memory_mib": {"used": all_used.memory_mib, "offered": all_offered.memory_mib},
        "nodes": [_node_row(node, row) for node, row in zip(nodes, host_rows(config, snapshot, now), strict=True)],
    }


def host_rows(config: ServeConfig, snapshot: ClusterSnapshot, now: float) -> tuple[HostRow, ...]:
    """Nodes with their resources and the part used by replicas: live nodes by number, then lost ones."""
    lost = {one.seen.node: now - one.since for one in snapshot.lost_nodes}
    gateways = snapshot.others.get(GATEWAY, NOT_THERE).replicas
    rows = []
    for node in [*snapshot.nodes, *(one.seen for one in snapshot.lost_nodes)]:
        here = {
            pool: replace(seen, replicas=tuple(one for one in seen.replicas if one.node == node.node))
            for pool, seen in snapshot.deployments.items()
        }
        taken = used(sizes_of(config), here)
        rows.append(
            HostRow(
                name=node.name,
                address=node.address,
                npus=node.npus,
                npus_used=taken.npus,
                ub_memory_mib=node.memory_mib,
                ub_used_mib=taken.memory_mib,
                lost_s=lost.get(node.node),
                gateways=sum(one.node == node.node and one.phase is ReplicaPhase.SERVING for one in gateways),
                disk_full=node.disk_full,
            )
        )
    return tuple(rows)


def _node_row(node: SeenNode, row: HostRow) -> dict[str, Any]:
    """Row of a Ray node, which may consist of several hosts."""
    devices = range(node.npus)
    npus = npu_ids(devices, node.number) if node.number is not None else [f"{node.name}.npu{one}" for one in devices]
    return {
        "name": row.name,
        "address": row.address,
        "state": "alive" if row.lost_s is None else "dead",
        "lost_s": row.lost_s,
        "disk_full": row.disk_full,
        "npus": [str(npu) for npu in npus],
        "npus_used": row.npus_used,
        "gateways": row.gateways,
        "ub_memory_mib": {"used": row.ub_used_mib, "offered": row.ub_memory_mib},
    }


def _taken(size: ReplicaSize, seen: SeenDeployment) -> dict[str, int]:
    taken = [size.of(replica) for replica in seen.replicas if replica.node is not None]
    return {"npus": sum(one.npus for one in taken), "ub_memory_mib": sum(one.memory_mib for one in taken)}


def _engine_load(snapshot: ClusterSnapshot, pool: str) -> dict[str, Any]:
    members = members_of(snapshot, pool)
    asked = total(members, "prefix_queries_tokens_total")
    return {
        "queued_tokens": total(members, "queued_tokens"),
        "sequences": total(members, *INSIDE),
        "kv_fill": _share(total(members, "kv_blocks_used"), total(members, "kv_blocks_total")),
        "hit_rate": _share(total(members, "prefix_hits_tokens_total"), asked),
        "replicas": [_replica(snapshot, replica) for replica in _listed(snapshot, pool)],
    }


def _replica(snapshot: ClusterSnapshot, replica: SeenReplica) -> dict[str, Any]:
    """Row of one instance, or of a group with the sums over its ranks and a row for each."""
    members = snapshot.instances_of(replica.name)
    ranks = [_rank(member) for member in members if "rank" in member.facts]
    phase = replica.phase
    if phase is ReplicaPhase.SERVING and members and all(member.facts.get("draining") for member in members):
        phase = ReplicaPhase.DRAINING
    return {
        "name": replica.name,
        "serve_name": replica.name,
        "state": phase.value,
        "node": _node(snapshot, replica),
        **_load(members),
        "pid": replica.pid or next((member.facts.get("pid") for member in members), None),
        "ranks": ranks,
    }


def _rank(member: SeenMember) -> dict[str, Any]:
    state = ReplicaPhase.DRAINING if member.facts.get("draining") else ReplicaPhase.SERVING
    name = member.name.rpartition("#")[2]
    return {"name": name, "state": state.value, **_load([member]), "pid": member.facts.get("pid")}


def _load(members: list[SeenMember]) -> dict[str, Any]:
    """Totals of some instances; memory is None if no instance reports its capacity."""
    reported = [member for member in members if member.facts.get("hbm_capacity_bytes")]
    return {
        "npus": [npu for member in members for npu in member.facts.get("npus", ())],
        "sequences": total(members, *INSIDE),
        "queued_tokens": total(members, "queued_tokens"),
        "kv_fill": _share(total(members, "kv_blocks_used"), total(members, "kv_blocks_total")),
        "hbm_used_bytes": total(reported, "hbm_used_bytes") if reported else None,
        "hbm_capacity_bytes": total(reported, "hbm_capacity_bytes") if reported else None,
    }


def _busy(shown: Mapping[str, Any], snapshot: ClusterSnapshot, busy: BusyShares) -> float | None:
    """The busy share of an instance, or the mean over the ranks of a group."""
    names = [member.name.rpartition("#")[2] for member in snapshot.instances_of(shown["serve_name"])]
    shares = [share for name in names if (share := busy.share(name)) is not None]
    return sum(shares) / len(shares) if shares else None


def _cache_load(snapshot: ClusterSnapshot, hit_rate: float | None) -> dict[str, Any]:
    return {
        "queued_tokens": 0,
        "sequences": 0,
        "kv_fill": _share(*memory_fill(snapshot)),
        "hit_rate": hit_rate,
        "replicas": [_server(snapshot, replica) for replica in _listed(snapshot, KVCACHE)],
    }


def _server(snapshot: ClusterSnapshot, replica: SeenReplica) -> dict[str, Any]:
    servers = snapshot.cache.servers if snapshot.cache is not None else ()
    record = next((s.record for s in servers if replica.pid and s.record.facts.get("pid") == replica.pid), None)
    ledger: Mapping[str, Any] = record.facts.get("ledger", {}) if record is not None else {}
    return {
        "name": record.name if record is not None else replica.name,
        "serve_name": replica.name,
        "state": replica.phase.value,
        "node": _node(snapshot, replica),
        "npus": [],
        "sequences": 0,
        "queued_tokens": 0,
        "kv_fill": _share(ledger.get("dram_used_bytes", 0), ledger.get("dram_capacity_bytes", 0)),
        "hbm_used_bytes": None,
        "hbm_capacity_bytes": None,
        "pid": replica.pid,
        "ranks": [],
    }


def _listed(snapshot: ClusterSnapshot, pool: str) -> tuple[SeenReplica, ...]:
    """Replicas of a pool: serving ones first, then starting, then draining ones."""
    order = list(ReplicaPhase)
    order.sort(key=lambda phase: phase is not ReplicaPhase.SERVING)
    replicas = snapshot.deployments.get(pool, NOT_THERE).replicas
    return tuple(sorted(replicas, key=lambda replica: (order.index(replica.phase), replica.name)))


def _node(snapshot: ClusterSnapshot, replica: SeenReplica) -> str | None:
    return next((node.name for node in snapshot.nodes if node.node == replica.node), replica.node)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
