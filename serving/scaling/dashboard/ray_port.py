"""The running system behind the page: a driver of the Ray cluster, on a thread of its own.

Some calls into Ray block whoever makes them until Ray's control store answers, which may be never. They block this
thread; the page's own event loop goes on and says so.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import ray

from serving.deadline import within
from serving.errors import ScaleError
from serving.values.scaling import Answer, PoolOperation

logger = logging.getLogger(__name__)

DEADLINE_S = 6.0
"""For an answer; the path's own deadline is shorter and says more."""
CONNECT_DEADLINE_S = 10.0
"""For the first answer, which waits for the connection."""


class RayPools:
    """`PoolsPort` over `serving/scaling/live/scale_path.py`.

    Args:
        connect: connects this process and gives that module; may block. Called when the system is first asked, not
            before: nobody may ever look. Called again if it raised.
        deadline_s: for an answer; `connect_deadline_s`: for the first one, which waits for the connection.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        deadline_s: float = DEADLINE_S,
        connect_deadline_s: float = CONNECT_DEADLINE_S,
    ) -> None:
        self._connect = connect
        self._deadline_s = deadline_s
        self._connect_deadline_s = connect_deadline_s
        self._path: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, operation: PoolOperation[Answer]) -> Answer:
        """See PoolsPort."""
        deadline_s = self._connect_deadline_s if self._path is None else self._deadline_s
        future = asyncio.run_coroutine_threadsafe(self._on_thread(operation), self._thread_loop())
        try:
            return await within(asyncio.wrap_future(future), deadline_s)
        except ScaleError:
            raise
        except TimeoutError as error:
            raise ScaleError(f"Ray does not answer within {deadline_s:g} s", kind="unavailable") from error
        except Exception as error:  # whatever Ray raises: it is gone, or has just begun
            logger.exception("asking Ray failed")
            first_line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ScaleError(f"Ray cannot be asked: {first_line}", kind="unavailable") from error

    async def _on_thread(self, operation: PoolOperation[Answer]) -> Answer:
        if self._path is None:
            self._path = self._connect()
        answer: Answer = await self._path.ask(operation)
        return answer

    def _thread_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="pools-ray", daemon=True).start()
        return self._loop


def connect(gcs_address: str) -> Any:  # noqa: ANN401 - a module
    """Become a driver of the cluster that this dashboard belongs to. Returns: the module `scale_path`."""
    from serving.scaling.live import scale_path  # heavy: here, in the one process that needs it

    if not ray.is_initialized():
        ray.init(
            address=gcs_address, namespace="_ray_dashboard", log_to_driver=False, configure_logging=False,
            _skip_env_hook=True,
        )  # fmt: skip
    return scale_path
