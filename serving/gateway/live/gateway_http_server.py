"""HTTP server inside a gateway's process: uvicorn on a socket that other gateways of the node may share.

Ray Serve is not aware of its requests and so does not wait for their streams when the gateway shuts down. `leave`
therefore drains the server: it closes the socket first, then waits for the streams.
"""

import asyncio
import logging
import socket
from contextlib import suppress
from math import ceil
from typing import Any

import uvicorn

from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.errors import ConfigError
from serving.gateway.live.connections import ConnectionLimits, connection_limits
from serving.gateway.live.http_protocol import guarded_protocol

logger = logging.getLogger(__name__)

LAST = (b"connection", b"close")
CHECK_PERIOD_S = 0.05
TICK_S = 1.0
BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
IDLE_S = 6.0
"""How long a gateway that shuts down waits for idle connections, which uvicorn closes after five seconds."""
LISTEN_ATTEMPTS = 50
"""A replacement replica may have to wait for its predecessor's socket: 50 attempts, 0.1 s apart."""


class IdleServer(uvicorn.Server):
    """Uvicorn with one tick per second instead of ten. A tick updates the `Date` header."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._leaves = asyncio.Event()

    def leave(self) -> None:
        """Shut down."""
        self.should_exit = True
        self._leaves.set()

    async def main_loop(self) -> None:
        """Tick until `leave`."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await within(self._leaves.wait(), TICK_S)


class CurrentApp:
    """An ASGI application that can be replaced while it serves; an exchange keeps the application it started with."""

    def __init__(self, app: Any) -> None:
        self.now = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one exchange."""
        await self.now(scope, receive, send)


class GatewayHttpServer:
    """Serves one ASGI application.

    Args:
        leave_s: how long streams may continue after `leave`; then they are aborted.
        limits: limits on clients' connections.
    """

    def __init__(self, app: Any, host: str, port: int, leave_s: float, limits: ConnectionLimits | None = None) -> None:
        self._host, self._port = host, port
        self._ended = asyncio.Event()
        self._opened = asyncio.Event()
        self._sockets: list[socket.socket] = []
        self._protocol = guarded_protocol(limits or ConnectionLimits())
        self._server = IdleServer(
            uvicorn.Config(
                app,
                http=self._protocol,
                # Uvicorn's own logging setup closes existing handlers. Without its own, Serve's replica could not
                # respond to a controller that returns, which would then replace it and abort every stream.
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
            self._sockets = [sock]
            self._opened.set()
            await self._server.serve(sockets=[sock])  # not on the main thread: uvicorn leaves the signals to Ray
        finally:
            self._opened.set()
            self._ended.set()

    async def opened(self) -> None:
        """Wait until connections are accepted, or `serve` has failed."""
        await self._opened.wait()

    def configure(self, limits: ConnectionLimits, leave_s: float) -> None:
        """Apply other limits to new connections, and to the next request of open ones."""
        self._protocol.configure(limits)
        self._server.config.timeout_graceful_shutdown = ceil(leave_s)

    async def leave(self, *, idle_s: float = 0.0) -> None:
        """Accept no new connections, and wait for the streams of the open ones.

        Connections still in the accept queue are served: closing the socket would reset them.

        Args:
            idle_s: how long an idle connection may still send one last request [s]; by default it is closed
                immediately, even if its client is just sending.
        """
        await self._take_waiting()
        if idle_s:
            self._server.config.encoded_headers.append(LAST)
            self._server.server_state.default_headers = [*self._server.server_state.default_headers, LAST]
            for _ in range(ceil(idle_s / CHECK_PERIOD_S)):
                if not self._server.server_state.connections:
                    break
                await asyncio.sleep(CHECK_PERIOD_S)
        self._server.leave()
        await self._ended.wait()

    async def _take_waiting(self) -> None:
        """Accept queued connections and close the listening sockets, without a pause between the two."""
        if not self._server.started:
            return
        config, waiting = self._server.config, []
        for sock in self._sockets:
            with suppress(OSError):  # no connection is queued any more
                while True:
                    waiting.append(sock.accept()[0])
        for server in self._server.servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            return self._protocol(config=config, server_state=self._server.server_state, app_state={}, _loop=loop)

        for accepted in waiting:
            with suppress(OSError):  # the client has disconnected
                accepted.setblocking(False)
                await loop.connect_accepted_socket(protocol, accepted)


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
        sock.listen(BACKLOG)
        return sock
    raise ConfigError(f"port {port} on {host} is still in use; stop the process that listens there")


def make_http_server(config: ServeConfig, app: Any) -> GatewayHttpServer:
    """The server of an application at the configured address."""
    gateway = config.gateway
    return GatewayHttpServer(app, gateway.host, gateway.port, gateway.request_timeout_s, connection_limits(config))
