"""Orders to groups of ranks from the page of the experts: the board passes them to a rank, its shell answers."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from serving.errors import UnavailableError
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

GroupOperation: TypeAlias = RebalanceGroup | DrainGroupRank | ResizeRankGroup
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
        short = answer.detail.get("kind") == "no_room"
        return ScaleRefusal("no_room" if short else "not_now", answer.reason, answer.detail.get("fits"))
    return GroupAnswer(operation.group, answer.reason)


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
