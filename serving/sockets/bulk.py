"""Transfer of many buffers over one blocking socket, directly from and to shared memory.

Plain sockets take several buffers with one system call; TLS sockets take one at a time.
"""

import socket
import ssl
import time
from collections.abc import Callable, Sequence

AT_ONCE = 64
"""Buffers per system call; the kernel accepts 1024, but one call fills only a few."""
NOTHING = memoryview(b"")
PIECE_BYTES = 1 << 20
"""Bytes read from a plain socket at a time, so that they are still in the cache when they are hashed."""


def send_views(sock: socket.socket, views: Sequence[memoryview], deadline: float) -> None:
    """Send all bytes of these buffers, in order.

    Args:
        views: of bytes, contiguous.
        deadline: on `time.monotonic`'s scale.
    Raises: TimeoutError, OSError as sockets do.
    """
    if isinstance(sock, ssl.SSLSocket):
        for view in views:
            at = 0
            while at < len(view):
                _leave(sock, deadline)
                at += sock.send(view[at : at + PIECE_BYTES])
        return
    first, at = 0, 0
    while first < len(views):
        _leave(sock, deadline)
        sent = sock.sendmsg([views[first][at:], *views[first + 1 : first + AT_ONCE]])
        first, at = _position(views, first, at + sent)


def receive_views(
    sock: socket.socket,
    views: Sequence[memoryview],
    deadline: float,
    on_filled: Callable[[int], object] | None = None,
    ahead: memoryview = NOTHING,
) -> None:
    """Fill all of these buffers, in order.

    Args:
        views: of bytes, writable, contiguous.
        on_filled: called with the index of each buffer when it is full.
        ahead: leading bytes that were read before; at most all of them.
    Raises: TimeoutError, OSError as sockets do; ConnectionError if the stream ends before.
    Effects: fills the buffers; their contents are undefined if it raises.
    """
    tls = isinstance(sock, ssl.SSLSocket)
    first, at = _position(views, 0, _filled(views, ahead))
    filled = 0
    while True:
        while filled < first:
            if on_filled is not None:
                on_filled(filled)
            filled += 1
        if first == len(views):
            return
        _leave(sock, deadline)
        if tls:
            got = sock.recv_into(views[first][at:])
        else:
            got = sock.recvmsg_into(_next(views, first, at))[0]
        if got == 0:
            raise ConnectionError("the stream ended in the middle")
        first, at = _position(views, first, at + got)


def tune_bulk(sock: socket.socket) -> None:
    """Set large buffers, and keep-alive to detect a dead host.

    Raises: OSError if the socket is closed.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def _next(views: Sequence[memoryview], first: int, at: int) -> list[memoryview]:
    """Buffers of the next system call."""
    piece = [views[first][at : at + PIECE_BYTES]]
    left = PIECE_BYTES - len(piece[0])
    following = first + 1
    while left > 0 and following < len(views) and len(piece) < AT_ONCE and at + len(piece[0]) >= len(views[first]):
        piece.append(views[following][:left])
        if len(piece[-1]) < len(views[following]):
            break
        left -= len(piece[-1])
        following += 1
    return piece


def _filled(views: Sequence[memoryview], ahead: memoryview) -> int:
    """Copy bytes to the first buffers. Returns: their number."""
    nbytes = len(ahead)
    for view in views:
        if not ahead:
            break
        size = min(len(view), len(ahead))
        view[:size] = ahead[:size]
        ahead = ahead[size:]
    return nbytes


def _position(views: Sequence[memoryview], first: int, at: int) -> tuple[int, int]:
    """Normalize a position: buffer, and bytes of it that are done."""
    while first < len(views) and at >= len(views[first]):
        at -= len(views[first])
        first += 1
    return first, at


def _leave(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for these bytes is over")
    sock.settimeout(left)
