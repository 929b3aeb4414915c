"""Turns at a few processes: a fixed number concurrently, others queue, excess is refused. For any event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator

from serving.errors import OverloadedError

MOST_WAITING = 1024


class TemplateTurns:
    """One queue.

    Args:
        most: concurrent turns.
        most_bytes: bytes that may wait; a single request may always wait.
        patience_s: longest wait for a turn.
    """

    def __init__(self, most: int, most_bytes: int, patience_s: float) -> None:
        self._free = most
        self._most_bytes, self._patience_s = most_bytes, patience_s
        self._waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def state(self) -> tuple[int, int, int]:
        """Free turns, waiting requests, and their bytes."""
        return self._free, len(self._waiting), self._bytes

    @contextlib.asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for a turn and take it. Raises: OverloadedError if too much is waiting already; TimeoutError."""
        with self._lock:
            waits = not self._free
            if not waits:
                self._free -= 1
        if waits:
            await self._wait(size)
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        place = loop, loop.create_future()
        with self._lock:
            if len(self._waiting) >= MOST_WAITING or (self._bytes and self._bytes + size > self._most_bytes):
                raise OverloadedError("too many conversations are waiting for the chat template", retry_after_s=1.0)
            self._waiting.append(place)
            self._bytes += size
        try:
            async with asyncio.timeout(self._patience_s):
                await place[1]
        except BaseException:
            with self._lock:
                waits = place in self._waiting
                if waits:
                    self._waiting.remove(place)
            if not waits:  # its turn became free at the same moment
                self._leave()
            raise
        finally:
            with self._lock:
                self._bytes -= size

    def _leave(self) -> None:
        """Give the turn to the next waiting request."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._free += 1
                    return
                loop, turn = self._waiting.popleft()
            with contextlib.suppress(RuntimeError):  # that loop has been closed in the meantime
                loop.call_soon_threadsafe(_wake, turn)
                return


def _wake(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)
