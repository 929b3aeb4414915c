"""Accepts links and forgets none of them when it closes.

`asyncio.Server` (Python 3.11) drops a connection that it has accepted but not given a transport yet when it is closed:
nobody closes that socket, and the peer believes in a link that nobody serves.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

BACKLOG = 64
_REFUSAL_S = 1.0
"""How long nobody is accepted after the kernel refused a socket (no more open files)."""


class Listener:
    """Listens on one address. One asyncio loop only."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """
        Args:
            make: the protocol of one more connection.
        """
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._accepted: set[asyncio.Task[None]] = set()
        """Connections that have no transport yet."""

    def start(self, host: str) -> tuple[str, int]:
        """Listen on `host` at a free port.

        Returns: the address bound.
        Raises: OSError if the host cannot be bound.
        """
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept)
        return self.address

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, while it does."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    async def stop(self) -> None:
        """Listen no more. Every connection that was accepted has met its protocol when this returns."""
        listening, self._socket = self._socket, None
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        if self._accepted:
            await asyncio.wait(self._accepted)

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(BACKLOG):
            try:
                accepted, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("cannot accept a link (%s); raise the limit of open files", error)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(_REFUSAL_S, self._accept_again)
                return
            task = self._loop.create_task(self._connect(accepted))
            self._accepted.add(task)
            task.add_done_callback(self._accepted.discard)

    def _accept_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with contextlib.suppress(OSError):  # the peer is gone already
            await self._loop.connect_accepted_socket(self._make, accepted)
