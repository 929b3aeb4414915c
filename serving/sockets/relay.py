"""A plain local socket in place of a TLS connection, for native code, which reads and writes plain sockets only.

    native code ══ local socket ══ relay ══ TLS ══ the peer's relay ══ local socket ══ native code

A relay is one thread for both directions: OpenSSL's objects must not be used by two at once. It holds at most one
buffer of bytes in each direction, so a receiver that falls behind stops its sender. The end of one side ends the other.
"""

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from serving.sockets.bulk import NOTHING

logger = logging.getLogger(__name__)

BUFFER_BYTES = 256 << 10
_TURNS = 16
_POLL_S = 1.0


def plain_end(sock: socket.socket, stall_s: float) -> socket.socket:
    """A plain socket for the bytes of a connection: the connection itself, or the local end of a relay to it.

    Args:
        sock: connected, and no longer used by the caller.
        stall_s: longest time in which a side takes none of the bytes for it [s]; then both are closed.
    Raises: OSError if there are no more descriptors.
    Effects: a thread for a TLS connection, until either end is closed.
    """
    if not isinstance(sock, ssl.SSLSocket):
        return sock
    own, given = socket.socketpair()
    relay = _Relay(sock, own, stall_s)
    threading.Thread(target=relay.run, name="tls-relay", daemon=True).start()
    return given


class _Direction:
    """Bytes on their way from one side to the other: read only when all bytes read before are written."""

    def __init__(self, read: Callable[[memoryview], int], write: Callable[[memoryview], int]) -> None:
        self._read, self._write = read, write
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self.waiting = NOTHING
        """Read, and not written yet."""

    def advance(self) -> bool:
        """Read and write what can be without waiting, a bounded number of times. Returns: whether any byte has moved.

        Raises: OSError, also at the end of the stream.
        """
        moved = False
        try:
            for _ in range(_TURNS):
                if not self.waiting:
                    if not (got := self._read(self._buffer)):
                        raise ConnectionResetError("the connection was closed")
                    self.waiting, moved = self._buffer[:got], True
                self.waiting, moved = self.waiting[self._write(self.waiting) :], True
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return moved


class _Relay:
    """One connection. `run` ends when either side does."""

    def __init__(self, secure: ssl.SSLSocket, plain: socket.socket, stall_s: float) -> None:
        self._secure, self._plain, self._stall_s = secure, plain, stall_s
        self._out = _Direction(plain.recv_into, secure.send)
        self._in = _Direction(secure.recv_into, plain.send)

    def run(self) -> None:
        """Move bytes until either side ends, then close both."""
        try:
            self._secure.setblocking(False)
            self._plain.setblocking(False)
            self._move()
        except OSError as error:  # ssl.SSLError is one
            logger.debug("a relay ends: %s", error)
        finally:
            for sock in (self._plain, self._secure):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def _move(self) -> None:
        ways = (self._out, self._in)
        taken_at, hung_up = [time.monotonic()] * 2, False
        while True:
            moved = [way.advance() for way in ways]
            now = time.monotonic()
            taken_at = [now if moved[i] or not way.waiting else taken_at[i] for i, way in enumerate(ways)]
            if now - min(taken_at) > self._stall_s:
                raise TimeoutError(f"no bytes were taken for {self._stall_s:g} s")
            if any(moved):
                continue
            if hung_up:
                raise ConnectionResetError("the connection was closed")
            hung_up = self._wait()

    def _wait(self) -> bool:
        """Wait until a side has bytes to read, or takes those that wait for it. Returns: whether a side has hung up."""
        poll = select.poll()
        poll.register(self._plain, _events(reads=not self._out.waiting, writes=bool(self._in.waiting)))
        poll.register(self._secure, _events(reads=not self._in.waiting, writes=bool(self._out.waiting)))
        found = poll.poll(min(_POLL_S, self._stall_s) * 1000)
        return any(events & (select.POLLHUP | select.POLLERR) for _, events in found)


def _events(*, reads: bool, writes: bool) -> int:
    return reads * select.POLLIN | writes * select.POLLOUT
