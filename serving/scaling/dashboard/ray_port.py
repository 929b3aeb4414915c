"""Access to the running system: a driver of the Ray cluster, on a thread of its own.

Some calls into Ray block until Ray's control store responds, which may never happen. They block only this thread; the
page's event loop continues and reports the timeout.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import ray

from serving.deadline import within
from serving.errors import ScaleError
from serving.values.scaling_operations import Answer, PoolOperation

logger = logging.getLogger(__name__)

DEADLINE_S = 6.0
"""Deadline of a response [s]; the deadline of `scale_path` is shorter, with a more specific error."""
CONNECT_DEADLINE_S = 10.0
"""Deadline of the first response [s], which includes the connection."""


class RayPools:
    """`PoolsPort` over `serving/scaling/live/scale_path.py`.

    Args:
        connect: connects this process and returns that module; may block. Called at the first operation, because the
            page may never be opened, and again if it raised.
        deadline_s: of a response [s]; `connect_deadline_s`: of the first response, which includes the connection.
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
        """Run an operation on the driver's thread.

        Raises: ScaleError, also with kind `unavailable` if Ray fails or does not respond in time.
        """
        deadline_s = self._connect_deadline_s if self._path is None else self._deadline_s
        future = asyncio.run_coroutine_threadsafe(self._on_thread(operation), self._thread_loop())
        try:
            return await within(asyncio.wrap_future(future), deadline_s)
        except ScaleError:
            raise
        except TimeoutError as error:
            raise ScaleError(f"Ray does not answer within {deadline_s:g} s", kind="unavailable") from error
        except Exception as error:  # any error of Ray, which has stopped or is still starting
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
    """Connect this process as a driver to the dashboard's cluster. Returns: the module `scale_path`."""
    from serving.scaling.live import scale_path  # a heavy import, needed only in this process

    if not ray.is_initialized():
        ray.init(
            address=gcs_address, namespace="_ray_dashboard", log_to_driver=False, configure_logging=False,
            _skip_env_hook=True,
        )  # fmt: skip
    return scale_path
