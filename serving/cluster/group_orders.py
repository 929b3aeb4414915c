"""Operators' commands from gateways to the shell of a group, through one of its ranks, see `Mailbox` there."""

import uuid
from functools import partial
from typing import Any

import ray

from serving.cluster.lookup import ActorLookup
from serving.cluster.membership import NAMESPACE
from serving.deadline import within
from serving.errors import UnavailableError
from serving.values.operator_order import OperatorOrder, OrderAnswer, PostedOrder, SizeOrder

LOOKUP_DEADLINE_S = 3.0
MARGIN_S = 3.0
"""Margin beyond the deadline of the rank itself."""


async def post_order(actor: str, order: OperatorOrder | SizeOrder, limit_s: float) -> OrderAnswer:
    """Send a command to a group and wait for its shell's response.

    Args:
        actor: name of any of the group's ranks.
        limit_s: response timeout of the shell [s].
    Raises: UnavailableError if the rank has ended or does not respond.
    """
    try:
        rank: Any = await ActorLookup(partial(ray.get_actor, actor, NAMESPACE)).answer(LOOKUP_DEADLINE_S)
        told = rank.post_order.remote(PostedOrder(uuid.uuid4().hex, order), limit_s)
        answer: OrderAnswer = await within(told, limit_s + MARGIN_S)
    except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
        raise UnavailableError(
            f"the rank did not respond ({type(error).__name__}); `cloudmatrix experts` shows the result of the command",
            retry_after_s=LOOKUP_DEADLINE_S,
        ) from error
    return answer
