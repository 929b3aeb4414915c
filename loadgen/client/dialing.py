"""Opening connections: cached name resolution, addresses tried in order, one-line error descriptions.

A name is resolved again after ten seconds (as in aiohttp), so that connections neither wait for a lookup each nor use a
single host for the whole run.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from loadgen.client.address import ServerAddress

NAME_KEPT_S = 10.0
SLOW_READER_BUFFER_BYTES = 4096
"""Receive buffer of a slow reader. With the system's default (megabytes) the server would never notice the slow
reading."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)
Target = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
Found = list[tuple[int, Target]]


class Dialer:
    """Opens connections to one address."""

    def __init__(self, address: ServerAddress, tls: ssl.SSLContext | None) -> None:
        self._address = address
        self._tls = tls
        self._found: Found = []
        self._found_at = 0.0

    async def open(self, factory: Callable[[], ProtocolT], *, small_buffer: bool = False) -> ProtocolT:
        """Connect, and shake hands for TLS.

        Args:
            small_buffer: for slow readers, see `SLOW_READER_BUFFER_BYTES`.
        Raises: OSError (refused, unreachable, name unknown, TLS refused) of the last address tried.
        """
        last: OSError | None = None
        for family, target in await self._look_up():
            try:
                return await self._open_one(factory, family, target, small_buffer)
            except OSError as error:
                last = error
        raise last or OSError(f"{self._address.host} has no address")

    async def _open_one(
        self, factory: Callable[[], ProtocolT], family: int, target: Target, small_buffer: bool
    ) -> ProtocolT:
        loop = asyncio.get_running_loop()
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if small_buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_READER_BUFFER_BYTES)
            await loop.sock_connect(sock, target)
            name = self._address.host if self._tls is not None else None
            _, protocol = await loop.create_connection(factory, sock=sock, ssl=self._tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise
        return protocol

    async def _look_up(self) -> Found:
        if not self._found or monotonic() - self._found_at > NAME_KEPT_S:
            infos = await asyncio.get_running_loop().getaddrinfo(
                self._address.host, self._address.port, type=socket.SOCK_STREAM
            )
            self._found = [(family, target) for family, _, _, _, target in infos]
            self._found_at = monotonic()
        return self._found


_WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset while it was opened",
    errno.EMFILE: "too many open files: raise the limit with `ulimit -n`",
    errno.ENFILE: "too many open files on this machine",
    errno.EADDRNOTAVAIL: "no free local port: too many connections were opened and closed in a minute",
    errno.EHOSTUNREACH: "host unreachable",
    errno.ENETUNREACH: "network unreachable",
    errno.ETIMEDOUT: "no answer to the attempt to connect",
}


def connect_error(error: OSError, address: ServerAddress) -> str:
    """Describe a failed connection in one line for people."""
    if isinstance(error, socket.gaierror):
        return f"the name {address.host} is unknown"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: certificate of {address.authority} refused ({error.verify_message}); --insecure accepts any"
    if isinstance(error, ssl.SSLError):
        return f"TLS with {address.authority} failed ({error.reason or error}): is it https?"
    words = _WORDS.get(error.errno or 0) or " ".join(str(error).split()) or type(error).__name__
    return f"{words} ({address.host}, port {address.port})"
