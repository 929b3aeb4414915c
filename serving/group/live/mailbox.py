"""Mailbox for operators' orders to the shell of a group, kept by each of its ranks.

A gateway posts an order at any rank (`post_order` in `serving.cluster.group_orders`) and waits there for the answer,
until a deadline; the shell finds the orders in the report that it asks each rank for every half second, whichever shell
it is by then, and answers at the same rank. A rank that dies takes its orders along, and whoever asked is told so.
"""

import asyncio

from serving.deadline import within
from serving.values.operator_order import OrderAnswer, PostedOrder


class Mailbox:
    """Orders at one rank. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[PostedOrder, asyncio.Future[OrderAnswer]]] = {}

    def waiting(self) -> tuple[PostedOrder, ...]:
        """Orders that have no answer yet, the oldest first."""
        return tuple(posted for posted, _ in self._open.values())

    async def post(self, posted: PostedOrder, limit_s: float) -> OrderAnswer:
        """Wait for an answer; a refusal if no shell has answered in time.

        Effects: an order without an answer in time is withdrawn; a shell that has just found it may carry it out.
        """
        answer = asyncio.get_running_loop().create_future()
        self._open[posted.id] = posted, answer
        try:
            return await within(answer, limit_s)
        except TimeoutError:
            return OrderAnswer(False, f"the group's shell has not answered for {limit_s:g} s; it may be starting")
        finally:
            self._open.pop(posted.id, None)

    def answer(self, order: str, answer: OrderAnswer) -> None:
        """Tell who waits; nobody does if it came too late."""
        found = self._open.get(order)
        if found is not None and not found[1].done():
            found[1].set_result(answer)
