"""Accepts links, and loses none of them when it is closed.

When `asyncio.Server` (Python 3.11) is closed, it drops a connection that it has accepted but not given a transport yet:
that socket stays open, and the peer has a link that is not served.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from serving.config.ports import ANY_PORT, PortRange
from serving.errors import ConfigError
from serving.sockets.listening import listen
from serving.sockets.tls import tls_ends

logger = logging.getLogger(__name__)

BACKLOG = 64
_HANDSHAKE_S = 5.0
_REFUSAL_S = 1.0
"""Pause in accepting after the kernel refused a socket (no more open files)."""


class Listener:
    """Listens on one address. For a single asyncio loop."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """
        Args:
            make: creates the protocol of a new connection.
        """
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._ports = ANY_PORT
        self._accepted: set[asyncio.Task[None]] = set()
        """Connections without a transport yet."""

    def start(self, host: str, ports: PortRange = ANY_PORT) -> tuple[str, int]:
        """Listen on `host` at a free port of a range.

        Returns: the address bound.
        Raises: OSError if the host cannot be bound; ConfigError if the range has no free port.
        """
        self._ports = ports
        self._listen(host, 0)
        return self.address

    def move(self, host: str) -> None:
        """Also listen on another address of this host, at the same port if it is free there, and announce that one.

        Raises: as `start`.
        """
        if self._sockets and host != self.address[0]:
            self._listen(host, self.address[1])

    @property
    def address(self) -> tuple[str, int]:
        """Address that it listens on; only while it listens."""
        assert self._sockets
        host, port = self._sockets[-1].getsockname()[:2]
        return str(host), int(port)

    async def stop(self) -> None:
        """Stop listening. All accepted connections have their protocol when this returns."""
        listening, self._sockets = self._sockets, []
        for sock in listening:
            self._loop.remove_reader(sock)
            sock.close()
        if self._accepted:
            await asyncio.wait(self._accepted)

    def _listen(self, host: str, wish: int) -> None:
        sock = listen(host, self._ports, BACKLOG, wish)
        sock.setblocking(False)
        self._sockets.append(sock)
        self._loop.add_reader(sock, self._accept, sock)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("cannot accept a link (%s); raise the limit of open files", error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_REFUSAL_S, self._accept_again, listening)
                return
            task = self._loop.create_task(self._connect(accepted))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            ends = tls_ends()
        except ConfigError as error:
            logger.warning("a connection is not taken: %s", error)
            accepted.close()
            return
        try:
            if ends is None:
                await self._loop.connect_accepted_socket(self._make, accepted)
            else:
                await self._loop.connect_accepted_socket(
                    self._make, accepted, ssl=ends.server, ssl_handshake_timeout=_HANDSHAKE_S
                )
        except ssl.SSLError as error:
            logger.warning("a connection is not taken, no TLS: %s", error.reason or error)
        except OSError:
            logger.debug("a peer disconnected before it was accepted")
