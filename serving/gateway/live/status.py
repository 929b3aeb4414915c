"""The cluster's state, from instances' announcements: for `GET /cluster`, `cloudmatrix status` and `/metrics`."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import asdict

from serving.config.serve import ServeConfig
from serving.gateway.api.admin.cluster_routes import OrderedGroup
from serving.gateway.api.admin.pool_summary import server_rows
from serving.gateway.live.pool_links import Address
from serving.values.instances import Status
from serving.values.pool_view import PoolView
from serving.values.system_tally import HostRow, npus_offered
from serving.values.traffic import NoticeKind

_REPLICA_FIELDS = (
    "pid",
    "state",
    "group",
    "rank",
    "ranks",
    "role",
    "shell",
    "shell_pid",
    "npus",
    "hbm_used_bytes",
    "hbm_capacity_bytes",
    "ub_bytes",
    "readers",
    "kv_blocks_used",
    "kv_blocks_cached",
    "kv_blocks_total",
    "running",
    "waiting",
    "held",
    "pulling",
    "fetching",
    "queued_tokens",
    "steps_total",
    "prompt_tokens_total",
    "generated_tokens_total",
    "handoffs_in_total",
    "handoff_bytes_in_total",
    "preemptions_total",
    "predicted_s",
    "time_scale",
    "late_steps_total",
    "draining",
    "told_s",
    "kv_events",
)


def cluster_status(
    config: ServeConfig,
    members: Iterable[Address],
    gateway: Mapping[str, int],
    view: PoolView | None = None,
    targets: Mapping[str, int] | None = None,
    gateways: int = 1,
    hosts: Sequence[HostRow] = (),
    board_silent_s: float | None = None,
) -> dict[str, Any]:
    """Pools with their replicas (of a group each rank), NPUs in use and offered, and the gateways' counts. JSON-ready.

    Args:
        gateway: counts of all gateways together, as known to the responding one.
        view: the KV-cache pool; None = there is none, and the key `kvcache` is absent.
        targets: replicas requested now, by pool; a missing pool has the configured number.
        gateways: number of gateways.
        hosts: of the cluster; while none is known, the configured NPUs count as offered.
        board_silent_s: how long this gateway has received no hosts and targets [s]; None = it receives them.
    """
    listed = list(members)
    targets = targets or {}
    pools: list[dict[str, Any]] = []
    for pool, section in config.pools.items():
        replicas = [_replica(member) for member in listed if member.pool == pool]
        pools.append({"name": pool, "target_replicas": targets.get(pool, section.replicas), "replicas": replicas})
    used = sum(len(replica["npus"]) for pool in pools for replica in pool["replicas"])
    status = {
        "model": config.model.name or config.model.path.name,
        "mode": config.serving.mode,
        "chaos": config.chaos.enabled,
        "npus": {"used": used, "offered": npus_offered(hosts) if hosts else config.cluster.npus},
        "hosts": [asdict(host) for host in hosts],
        "board_silent_s": board_silent_s,
        "gateways": gateways,
        "gateway": dict(gateway),
        "pools": pools,
    }
    if view is not None:
        target = targets.get("kvcache", config.kvcache.replicas)
        status["kvcache"] = {"name": "kvcache", "target_replicas": target, "servers": server_rows(view)}
    return status


def _replica(member: Address) -> dict[str, Any]:
    facts = member.facts
    shown = {name: facts.get(name) for name in _REPLICA_FIELDS}
    masked = (facts.get("experts") or {}).get("masked_count", 0)  # of the rank's map, over all layers
    return {"replica": member.replica, "node": member.node, **shown, "masked_experts": masked}


def current_facts(
    facts: Mapping[str, Any], status: Status | None, latest: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Facts that an instance announced, updated by its later reports over the link.

    Args:
        status: its last report; None = there is no link to it.
        latest: facts in its last response to a gateway; may be older than its latest announcement.
    """
    if latest.get("told_s", 0.0) > facts.get("told_s", 0.0):
        facts = {**facts, **latest}
    if status is None:
        return dict(facts)
    return {
        **facts,
        "running": status.running - status.pulling - status.fetching,
        "pulling": status.pulling,
        "fetching": status.fetching,
        "waiting": status.waiting,
        "queued_tokens": status.queued_tokens,
        "kv_blocks_used": facts["kv_blocks_total"] - status.blocks_free,
        "kv_blocks_cached": status.blocks_cached,
        "draining": status.draining,
        "lost_paths": len(status.lost_paths),
        "slow_paths": len(status.slow_paths),
    }


def state_of(facts: Mapping[str, Any], lost: NoticeKind | None, *, linked: bool) -> str:
    """`serving`, `draining`, `dead`, `frozen`, or `starting` while there is no link yet.

    Membership lists a dead instance until its announcement expires; the gateway detects its loss immediately.

    Args:
        lost: how the gateway lost it; None = it did not.
    """
    if lost is not None:
        return "frozen" if lost == "frozen" else "dead"
    if not linked:
        return "starting"
    return "draining" if facts.get("draining") else "serving"


def ordered_groups(members: Iterable[Address]) -> list[OrderedGroup]:
    """Groups that accept commands, each with one of its present ranks.

    An expert rank is the last choice, because a gateway has no link that reports its death. A rank that waits for a
    lost one accepts commands, although it counts as frozen.

    Args:
        members: with their state among the facts.
    """
    found: dict[str, OrderedGroup] = {}
    for member in sorted(members, key=lambda one: (one.port == 0, one.facts["state"] != "serving")):
        facts = member.facts
        if facts.get("actor") and facts["state"] in ("serving", "frozen"):
            found.setdefault(facts["group"], OrderedGroup(facts["group"], member.pool, facts["actor"]))
    return list(found.values())


def host_labels(members: Iterable[Address]) -> dict[str, str]:
    """Labels of nodes in metrics, by Ray's id: `n<number>`, as in the names of their NPUs."""
    npus = ((member.node, next(iter(member.facts["npus"]), "")) for member in members)
    return {node: npu.partition(".")[0] for node, npu in npus if npu}
