"""Mailbox of a rank for operators' commands to the shell of its group.

A gateway posts a command at any rank (`post_order` in `serving.cluster.group_orders`) and waits for the response until
a deadline. The shell, possibly a new one, reads the commands in the rank's report every half second and responds at the
same rank. If the rank dies, its commands are lost and the gateway gets an error.
"""

import asyncio

from serving.deadline import within
from serving.values.operator_order import OrderAnswer, PostedOrder


class Mailbox:
    """Commands at one rank. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[PostedOrder, asyncio.Future[OrderAnswer]]] = {}

    def waiting(self) -> tuple[PostedOrder, ...]:
        """Commands without a response, oldest first."""
        return tuple(posted for posted, _ in self._open.values())

    async def post(self, posted: PostedOrder, limit_s: float) -> OrderAnswer:
        """Post a command and wait for its response. Returns: a refusal if no shell has responded in time.

        Effects: without a response the command is withdrawn at the deadline; a shell that has already read it may still
            carry it out.
        """
        answer = asyncio.get_running_loop().create_future()
        self._open[posted.id] = posted, answer
        try:
            return await within(answer, limit_s)
        except TimeoutError:
            return OrderAnswer(False, f"the group's shell has not responded for {limit_s:g} s; it may be starting")
        finally:
            self._open.pop(posted.id, None)

    def answer(self, order: str, answer: OrderAnswer) -> None:
        """Deliver a response. One that is too late is dropped."""
        found = self._open.get(order)
        if found is not None and not found[1].done():
            found[1].set_result(answer)
