"""Groups of ranks as the board sees them, for the page of the experts: the same rows as `GET /experts`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.config.serve import ServeConfig
from serving.group.core.expert_status import expert_status
from serving.ids import ReplicaId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.event_log import EventKind


@dataclass(frozen=True, slots=True)
class _Member:
    """An `AnnouncedMember`."""

    replica: ReplicaId
    pool: str
    facts: dict[str, Any]


def experts_of(
    config: ServeConfig, sight: ClusterSnapshot, lost: Mapping[str, EventKind], now: float
) -> dict[str, Any]:
    """Groups with load and placement of experts, `ep` by pool, and how old that is.

    Args:
        lost: ranks that are dead or frozen, by name. now: seconds since 1970.
    """
    members = [
        _Member(ReplicaId(one.name), one.pool, {**one.facts, "state": _state(lost.get(one.name), one.facts)})
        for one in sight.members.values()
    ]
    return {
        "now": now,
        "seen_s": now - sight.at,
        "model": config.model.name or config.model.path.name,
        "mode": config.serving.mode,
        **expert_status({name: pool.ep for name, pool in config.pools.items()}, members),
    }


def _state(lost: EventKind | None, facts: Mapping[str, Any]) -> str:
    if lost is not None:
        return "frozen" if lost is EventKind.FROZEN else "dead"
    return "draining" if facts.get("draining") else "serving"
