"""Operations on groups of ranks: which rank receives the command, and how its shell's response is passed on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from serving.config.serve import ServeConfig
from serving.group.core.expert_status import expert_status
from serving.ids import ReplicaId
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember
from serving.scaling.core.event_log import EventKind, EventLog
from serving.values.group import DrainRank, OperatorOrder, OrderAnswer, RebalanceExperts, ResizeGroup, SizeOrder
from serving.values.scaling_operations import DrainGroupRank, GroupAnswer, RebalanceGroup, ResizeRankGroup, ScaleRefusal

GROUP_OPERATIONS = (RebalanceGroup, DrainGroupRank, ResizeRankGroup)
GroupOperation: TypeAlias = RebalanceGroup | DrainGroupRank | ResizeRankGroup
_KEPT = ("no_room", "unavailable")
"""Kinds of a shell's refusal that are passed on unchanged."""
MOST_EVENTS = 20
"""Of a group, on the page."""


@dataclass(frozen=True, slots=True)
class GroupRankOrder:
    """A command to a group, addressed to the actor of one rank."""

    actor: str
    order: OperatorOrder | SizeOrder


def rank_order(operation: GroupOperation, snapshot: ClusterSnapshot) -> GroupRankOrder | ScaleRefusal:
    """The command for the first rank of the group that accepts commands; a refusal if there is none."""
    ranks = [
        one for one in snapshot.members.values() if one.facts.get("group") == operation.group and _takes_orders(one)
    ]
    if not ranks:
        return ScaleRefusal("unknown_group", f"there is no group {operation.group!r} that takes orders")
    first = min(ranks, key=lambda one: int(one.facts["rank"]))
    return GroupRankOrder(first.facts["actor"], _order(operation))


def group_answer(group: str, answer: OrderAnswer) -> GroupAnswer | ScaleRefusal:
    """A shell's response in terms of the operation."""
    if answer.accepted:
        return GroupAnswer(group, answer.reason)
    kind = answer.detail.get("kind")
    return ScaleRefusal(kind if kind in _KEPT else "not_now", answer.reason, answer.detail.get("fits"))


def _takes_orders(member: SeenMember) -> bool:
    return member.facts.get("actor") is not None and not member.facts.get("draining")


def _order(operation: GroupOperation) -> OperatorOrder | SizeOrder:
    match operation:
        case RebalanceGroup():
            return RebalanceExperts()
        case DrainGroupRank(_, rank):
            return DrainRank(rank)
        case ResizeRankGroup(_, ranks):
            return ResizeGroup(ranks)


# Groups of ranks for the experts page: the same rows as `GET /experts`.


@dataclass(frozen=True, slots=True)
class _Member:
    """An `AnnouncedMember`."""

    replica: ReplicaId
    pool: str
    facts: dict[str, Any]


def experts_of(config: ServeConfig, snapshot: ClusterSnapshot, events: EventLog, now: float) -> dict[str, Any]:
    """Response to `ReadExperts`: each group's ranks with their experts and load, and the age of the snapshot.

    Args:
        now: seconds since 1970.
    Returns: JSON-ready; `ep` is the number of ranks per group that each pool is configured for; a group's `events` are
        losses and replacements of its ranks, latest first.
    """
    lost, newest = events.lost(), events.newest()
    members = [
        _Member(ReplicaId(one.name), one.pool, {**one.facts, "state": _state(lost.get(one.name), one.facts)})
        for one in snapshot.members.values()
    ]
    status = expert_status({name: sum(pool.sides) for name, pool in config.pools.items()}, members)
    for group in status["groups"]:
        ranks = f"{group['group'].rpartition('#')[2]}."
        group["events"] = [one.row() for one in newest if one.replica.startswith(ranks)][:MOST_EVENTS]
    return {
        "now": now,
        "seen_s": now - snapshot.at,
        "model": config.model.name or config.model.path.name,
        "mode": config.serving.mode,
        **status,
    }


def _state(lost: EventKind | None, facts: Mapping[str, Any]) -> str:
    if lost is not None:
        return "frozen" if lost is EventKind.FROZEN else "dead"
    return "draining" if facts.get("draining") else "serving"
