"""Slots for a bounded number of concurrent requests, granted in the order of requests."""

import asyncio
import time
from collections import deque


class Slots:
    """Counting semaphore that records when each slot was granted: waiting for it is one thing, being slow to use it
    another.
    """

    def __init__(self, slots: int | None) -> None:
        """All free. None: no bound."""
        self._free = slots
        self._waiting: deque[asyncio.Future[float]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that are held back now."""
        return len(self._waiting)

    async def acquire(self) -> float | None:
        """Wait for a slot.

        Returns: when it was given [monotonic]; None if it was free all the time.
        Raises: asyncio.CancelledError; then no slot is held.
        """
        if self._free is None:
            return None
        if self._free > 0:
            self._free -= 1
            return None
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # it was ours already
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def release(self) -> None:
        """Give a slot back; the one that waits longest has it from this moment."""
        if self._free is None:
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(time.monotonic())
                return
        self._free += 1
