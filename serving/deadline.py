"""An answer, or none in time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Answer = TypeVar("Answer")


async def within(answer: Awaitable[Answer], seconds: float | None) -> Answer:
    """Wait for `answer` so long [s]; None: without end.

    `asyncio.wait_for` before Python 3.12 loses a cancellation that comes in the same turn of the loop as the answer: a
    task that asks again and again would outlive its `cancel()`, and whoever waits for its end would wait for ever.

    Raises: TimeoutError; whatever `answer` raises.
    Effects: an answer that is too late is cancelled.
    """
    async with asyncio.timeout(seconds):
        return await answer
