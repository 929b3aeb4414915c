"""Waiting with a timeout."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Answer = TypeVar("Answer")


async def within(answer: Awaitable[Answer], seconds: float | None) -> Answer:
    """Wait for `answer` for at most `seconds`; None: without limit.

    `asyncio.wait_for` before Python 3.12 loses a cancellation that arrives in the same iteration of the loop as the
    result: a task that polls would survive its `cancel()`, and a caller awaiting its end would wait forever.

    Raises: TimeoutError; any exception of `answer`.
    Effects: cancels `answer` at the timeout.
    """
    async with asyncio.timeout(seconds):
        return await answer
