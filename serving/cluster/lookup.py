"""Calls to Ray's control store (GCS), which block indefinitely while it is unavailable.

Each call runs on its own daemon thread; callers wait until their deadline only, and process exit does not wait.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from serving.deadline import within


class ActorLookup:
    """Finds an actor, or makes another call that Ray may not respond to, without blocking the event loop.

    Concurrent callers share one pending call, so at most one thread is used.

    Args:
        find: finds or makes the actor; may block.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._asked: Future[Any] | None = None

    async def answer(self, deadline_s: float) -> Any:
        """Response for event loops. Raises: TimeoutError if there is none in time, and as `find`."""
        return await within(asyncio.wrap_future(self._question()), deadline_s)

    def wait(self, deadline_s: float) -> Any:
        """Response for threads. Raises: as `answer`."""
        return self._question().result(deadline_s)

    def _question(self) -> Future[Any]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                self._asked.set_running_or_notify_cancel()  # one caller cannot cancel it for the others
                threading.Thread(target=self._ask, args=(self._asked,), name="ray-lookup", daemon=True).start()
            return self._asked

    def _ask(self, asked: Future[Any]) -> None:
        try:
            found = self._find()
        except BaseException as error:
            asked.set_exception(error)
        else:
            asked.set_result(found)
