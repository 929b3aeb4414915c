"""Operations on groups of ranks: which rank gets the order, and what its shell's answer means to who asked."""

from dataclasses import dataclass
from typing import TypeAlias

from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember
from serving.values.operator_order import (
    DrainRank,
    OperatorOrder,
    OrderAnswer,
    RebalanceExperts,
    ResizeGroup,
    SizeOrder,
)
from serving.values.scaling import DrainGroupRank, GroupAnswer, RebalanceGroup, ResizeRankGroup, ScaleRefusal

GROUP_OPERATIONS = (RebalanceGroup, DrainGroupRank, ResizeRankGroup)
GroupOperation: TypeAlias = RebalanceGroup | DrainGroupRank | ResizeRankGroup
_KEPT = ("no_room", "unavailable")
"""Kinds of a shell's refusal that mean the same here."""


@dataclass(frozen=True, slots=True)
class GroupRankOrder:
    """An order to a group, for a rank by name of its actor."""

    actor: str
    order: OperatorOrder | SizeOrder


def rank_order(operation: GroupOperation, sight: ClusterSnapshot) -> GroupRankOrder | ScaleRefusal:
    """The order for the first rank of the group that takes any; a refusal if there is none."""
    ranks = [one for one in sight.members.values() if one.facts.get("group") == operation.group and _takes_orders(one)]
    if not ranks:
        return ScaleRefusal("unknown_group", f"there is no group {operation.group!r} that takes orders")
    first = min(ranks, key=lambda one: int(one.facts["rank"]))
    return GroupRankOrder(first.facts["actor"], _order(operation))


def group_answer(group: str, answer: OrderAnswer) -> GroupAnswer | ScaleRefusal:
    """A shell's answer, for who asked."""
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
