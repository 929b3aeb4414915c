"""Orders to groups of ranks, by hand or from the scaler: the board passes them to a rank, its shell answers."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from serving.errors import UnavailableError
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenMember
from serving.scaling.core.decision import PoolTarget
from serving.scaling.core.group_parts import GroupParts
from serving.values.operator_order import (
    DrainRank,
    OperatorOrder,
    OrderAnswer,
    RebalanceExperts,
    ResizeGroup,
    SizeOrder,
)
from serving.values.scaling import DrainGroupRank, GroupAnswer, RebalanceGroup, ResizeRankGroup, ScaleRefusal

GroupOperation: TypeAlias = RebalanceGroup | DrainGroupRank | ResizeRankGroup
_KEPT = ("no_room", "unavailable")
"""Kinds of a shell's refusal that mean the same here."""
PostOrder = Callable[[str, OperatorOrder | SizeOrder], Awaitable[OrderAnswer]]
"""Posts an order at a rank, by name of its actor, and waits. Raises: UnavailableError."""


async def order_group(operation: GroupOperation, sight: ClusterSnapshot, post: PostOrder) -> GroupAnswer | ScaleRefusal:
    """Carry out an operation on a group.

    Args:
        sight: in which some rank of the group takes orders.
    """
    ranks = [one for one in sight.members.values() if one.facts.get("group") == operation.group and _takes_orders(one)]
    if not ranks:
        return ScaleRefusal("unknown_group", f"there is no group {operation.group!r} that takes orders")
    first = min(ranks, key=lambda one: int(one.facts["rank"]))
    try:
        answer = await post(first.facts["actor"], _order(operation))
    except UnavailableError as error:
        return ScaleRefusal("unavailable", str(error))
    if not answer.accepted:
        kind = answer.detail.get("kind")
        return ScaleRefusal(kind if kind in _KEPT else "not_now", answer.reason, answer.detail.get("fits"))
    return GroupAnswer(operation.group, answer.reason)


async def resize_groups(
    parts: GroupParts, sight: ClusterSnapshot, post: PostOrder, wanted: PoolTarget | None = None
) -> list[PoolTarget]:
    """Give decode groups the sizes that are due. A shell that misses an order gets it again after the next look.

    Args:
        wanted: by the scaler, if it has decided anew.
    Returns: targets to be written down; those that are held are not the scaler's.
    """
    targets = [parts.see(sight), parts.granted(wanted, sight) if wanted is not None else None]
    for resize in parts.due(sight):
        answer = await order_group(resize, sight, post)
        if isinstance(answer, ScaleRefusal) and answer.kind in ("no_room", "not_now"):
            targets.append(parts.refused(resize, answer.message, sight))
    return [one for one in targets if one is not None]


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
