"""The running system behind the page: a driver of the Ray cluster, on a thread of its own.

Some calls into Ray block whoever makes them until Ray's control store answers, which may be never. They block this
thread; the page's own event loop goes on and says so.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, TypeVar

import ray

from serving.dashboard.port import JsonObject
from serving.errors import ScaleError

logger = logging.getLogger(__name__)

DEADLINE_S = 6.0
"""For an answer; the path's own deadline is shorter and says more."""
CONNECT_DEADLINE_S = 10.0
"""For the first answer, which waits for the connection."""

Answer = TypeVar("Answer")


class RayPools:
    """`PoolsPort` over `deployments/scale_path.py`.

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

    async def state(self) -> JsonObject:
        """See PoolsPort."""
        return await self._ask(lambda path: path.pools_state())

    async def scale(self, pool: str, replicas: int, hold_s: float | None, by: str) -> JsonObject:
        """See PoolsPort."""
        return asdict(await self._ask(lambda path: path.scale_pool(pool, replicas, hold_s, by)))

    async def hold(self, pool: str, hold_s: float | None, by: str) -> JsonObject:
        """See PoolsPort."""
        return asdict(await self._ask(lambda path: path.hold_pool(pool, hold_s, by)))

    async def release(self, pool: str, by: str) -> JsonObject:
        """See PoolsPort."""
        return asdict(await self._ask(lambda path: path.release_hold(pool, by)))

    async def decisions(self, pool: str | None, after: int, limit: int) -> list[JsonObject]:
        """See PoolsPort."""
        return await self._ask(lambda path: path.decisions(pool, after, limit))

    async def _ask(self, call: Callable[[Any], Awaitable[Answer]]) -> Answer:
        deadline_s = self._connect_deadline_s if self._path is None else self._deadline_s
        future = asyncio.run_coroutine_threadsafe(self._on_thread(call), self._thread_loop())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline_s)
        except ScaleError:
            raise
        except TimeoutError as error:
            raise ScaleError(f"Ray does not answer within {deadline_s:g} s", kind="unavailable") from error
        except Exception as error:  # whatever Ray raises: it is gone, or has just begun
            logger.exception("asking Ray failed")
            first_line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ScaleError(f"Ray cannot be asked: {first_line}", kind="unavailable") from error

    async def _on_thread(self, call: Callable[[Any], Awaitable[Answer]]) -> Answer:
        if self._path is None:
            self._path = self._connect()
        return await call(self._path)

    def _thread_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="pools-ray", daemon=True).start()
        return self._loop


def connect(gcs_address: str) -> Any:  # noqa: ANN401 - a module
    """Become a driver of the cluster that this dashboard belongs to. Returns: `deployments/scale_path.py`."""
    from serving.deployments import scale_path  # heavy: here, in the one process that needs it

    if not ray.is_initialized():
        ray.init(
            address=gcs_address, namespace="_ray_dashboard", log_to_driver=False, configure_logging=False,
            _skip_env_hook=True,
        )  # fmt: skip
    return scale_path
