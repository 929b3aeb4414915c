"""Questions to Ray's control store (GCS), which wait without end while it is away.

Each is asked on a thread of its own, which nobody waits for any longer than their deadline, not even at exit.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from serving.deadline import within


class ActorLookup:
    """Finds an actor, or asks whatever else Ray may not answer, without blocking who asks.

    One question at a time: whoever asks again while it waits waits with it, so that no more than one thread is taken.

    Args:
        find: finds or makes the actor; may block.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find
        self._lock = threading.Lock()
        self._asked: Future[Any] | None = None

    async def answer(self, deadline_s: float) -> Any:
        """For event loops. Raises: TimeoutError if there is no answer in time, and as `find`."""
        return await within(asyncio.wrap_future(self._question()), deadline_s)

    def wait(self, deadline_s: float) -> Any:
        """For threads. Raises: as `answer`."""
        return self._question().result(deadline_s)

    def _question(self) -> Future[Any]:
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = Future()
                self._asked.set_running_or_notify_cancel()  # who stops waiting cannot cancel it for the others
                threading.Thread(target=self._ask, args=(self._asked,), name="ray-lookup", daemon=True).start()
            return self._asked

    def _ask(self, asked: Future[Any]) -> None:
        try:
            found = self._find()
        except BaseException as error:
            asked.set_exception(error)
        else:
            asked.set_result(found)
