"""The HTTP server inside a gateway's process: uvicorn on a socket that other gateways of the machine may share.

Serve knows nothing of what goes through it, and therefore does not wait for its streams when the gateway has to leave.
So it is asked to leave itself, and then closes the socket first, its streams last.
"""

import asyncio
import logging
import socket
from math import ceil
from typing import Any

import uvicorn

from serving.errors import ConfigError
from serving.gateway.live.connections import DoorLimits
from serving.gateway.live.http_protocol import guarded_protocol

logger = logging.getLogger(__name__)

LISTEN_ATTEMPTS = 50
"""A replacement replica may have to wait for its predecessor's socket: 50 tries, 0.1 s apart."""


class FrontDoor:
    """Carries the bytes of one ASGI application.

    Args:
        leave_s: how long streams may go on after `leave`; then they are cut.
        limits: what clients may send, how slowly, and how many of them there may be.
    """

    def __init__(self, app: Any, host: str, port: int, leave_s: float, limits: DoorLimits | None = None) -> None:
        self._host, self._port = host, port
        self._ended = asyncio.Event()
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=guarded_protocol(limits or DoorLimits()),
                # Uvicorn's own set-up of logging closes the handlers that are there. Without its own, Serve's replica
                # could not answer a controller that comes back, which would then replace it and cut every stream.
                log_config=None,
                log_level="warning",
                access_log=False,
                ws="none",
                timeout_graceful_shutdown=ceil(leave_s),
                lifespan="off",
            )
        )

    async def serve(self) -> None:
        """Listen and serve until `leave`.

        Raises: ConfigError if the port stays in use.
        """
        try:
            sock = await _listen(self._host, self._port)
            await self._server.serve(sockets=[sock])  # not the main thread: uvicorn leaves the signals to Ray
        finally:
            self._ended.set()

    async def leave(self) -> None:
        """Take no new connection, close the idle ones, and wait for the streams of the others."""
        self._server.should_exit = True
        await self._ended.wait()


async def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(LISTEN_ATTEMPTS):
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            sock.close()
            logger.warning("cannot listen on %s:%d (%s), attempt %d", host, port, error.strerror, attempt + 1)
            await asyncio.sleep(0.1)
            continue
        sock.setblocking(False)
        return sock
    raise ConfigError(f"port {port} on {host} stays in use; stop what listens there")
