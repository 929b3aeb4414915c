"""Frames of `messages.py` over a blocking socket.

One send is one system call and so, usually, is one receive: a connection carries one request at a time, so no other
frame can follow and reading ahead is safe. Deadlines are the socket's own: `sock.settimeout(left)` before a call bounds
the whole call, however slowly the peer sends. After any error the stream's position is unknown: close the socket.
"""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from serving.errors import UNREADABLE, PoolError, PoolTimeoutError, PoolUnreachableError, in_words
from serving.kvpool.core.messages import MAX_BODY_BYTES, MAX_CHUNK_BYTES, PROTOCOL, encoder
from serving.sockets.bulk import AT_ONCE, NOTHING, PIECE_BYTES, receive_views
from serving.sockets.proof import Channel

_M = TypeVar("_M")

POOL_CHANNEL = Channel("pool", PROTOCOL, frozenset({"client"}))

HEADER = struct.Struct("<II")
REST_S = 30.0
"""How long the rest of a frame may take on a socket without a timeout: that one waits for the *next* frame for ever."""

_READ_AHEAD_BYTES = 64 << 10
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_USER_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class PayloadRoom:
    """Place of a payload.

    Args:
        views: writable bytes, together as long as the payload.
        until: not a byte is put there later, on `time.monotonic`'s scale; 0 = the socket's own deadline counts.
        on_filled: called with the place of each view when it is full.
    """

    views: Sequence[memoryview]
    until: float = 0.0
    on_filled: Callable[[int], object] | None = None


def tune(sock: socket.socket) -> None:
    """Set the options that both sides need: no delay of small frames, and detection of a dead host within 25 s.

    Raises: PoolUnreachableError if the socket is closed.
    """
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    except OSError as error:
        raise PoolUnreachableError(f"the connection broke ({in_words(error)}); connect again") from error


def send(sock: socket.socket, message: msgspec.Struct, payload: Iterable[bytes | bytearray | memoryview] = ()) -> None:
    """Send one frame; all of it is with the kernel afterwards.

    Args:
        payload: contiguous buffers, sent one after the other.
    Raises: PoolTimeoutError if the socket's timeout passed; PoolUnreachableError if the connection broke; PoolError if
        the frame would be too large (then no byte was sent).
    """
    body = encoder.encode(message)
    parts = [memoryview(part).cast("B") for part in payload]
    payload_bytes = sum(map(len, parts))
    _require_sizes(len(body), payload_bytes, MAX_BODY_BYTES)
    views = [memoryview(HEADER.pack(len(body), payload_bytes)), memoryview(body), *parts]
    left = len(body) + payload_bytes + HEADER.size
    timeout = sock.gettimeout()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            sent = _send_some(sock, views)
            left -= sent
            if left == 0:
                return
            views = _after(views, sent)
            if deadline is not None:
                _set_left(sock, deadline)
    except (TimeoutError, BlockingIOError) as error:
        raise PoolTimeoutError(f"{left} bytes of a frame were not received in time") from error
    except OSError as error:
        raise PoolUnreachableError(f"the connection broke while sending ({in_words(error)})") from error
    finally:
        _restore(sock, timeout)


def receive(
    sock: socket.socket,
    decoder: "msgspec.msgpack.Decoder[_M]",
    payload_into: memoryview | Callable[[_M, int], PayloadRoom] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> tuple[_M, memoryview]:
    """Receive one frame.

    Args:
        payload_into: target of the payload, writable bytes at least as long as it, or a function that returns room for
            so many bytes behind a message; None = a new buffer.
        max_body_bytes: refuse more; the server limits clients that have not proved the secret.
    Returns: the message and its payload, a part of `payload_into` if that was given; empty if the function made room.
    Raises: PoolTimeoutError if the socket's timeout passed; PoolUnreachableError if the connection broke or ended;
        PoolError if the bytes are not a frame of this protocol.
    """
    timeout = sock.gettimeout()
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        ahead = sock.recv(_READ_AHEAD_BYTES)
        if len(ahead) >= HEADER.size:
            body_bytes, payload_bytes = HEADER.unpack_from(ahead)
            if payload_bytes == 0 and len(ahead) == HEADER.size + body_bytes <= max_body_bytes:
                return decoder.decode(memoryview(ahead)[HEADER.size :]), memoryview(b"")  # nearly every frame
        if not ahead:
            raise PoolUnreachableError("the connection was closed by the other side")
        return _receive_rest(sock, decoder, payload_into, ahead, max_body_bytes, deadline)
    except (TimeoutError, BlockingIOError) as error:
        raise PoolTimeoutError("no complete frame arrived in time") from error
    except OSError as error:
        raise PoolUnreachableError(f"the connection broke while receiving ({in_words(error)})") from error
    except UNREADABLE as error:
        raise PoolError(f"an unreadable frame ({error}); the other side speaks another protocol") from error
    finally:
        _restore(sock, timeout)


def _receive_rest(
    sock: socket.socket,
    decoder: "msgspec.msgpack.Decoder[_M]",
    payload_into: memoryview | Callable[[_M, int], PayloadRoom] | None,
    ahead: bytes,
    max_body_bytes: int,
    deadline: float | None,
) -> tuple[_M, memoryview]:
    """The slow path: a frame in several pieces, or with a payload."""
    deadline = time.monotonic() + REST_S if deadline is None else deadline
    start = bytearray(ahead)
    while len(start) < HEADER.size:
        _set_left(sock, deadline)
        start += _more(sock.recv(_READ_AHEAD_BYTES))
    body_bytes, payload_bytes = HEADER.unpack_from(start)
    _require_sizes(body_bytes, payload_bytes, max_body_bytes)
    came = memoryview(start)[HEADER.size :]
    if len(came) > body_bytes + payload_bytes:
        raise PoolError("bytes after the frame; a connection carries one request at a time")
    body = _filled(sock, memoryview(bytearray(body_bytes)), came[:body_bytes], deadline)
    behind = came[body_bytes:]
    message = decoder.decode(body)
    if callable(payload_into):
        room = payload_into(message, payload_bytes)
        if sum(map(len, room.views)) != payload_bytes:
            raise PoolError(f"{payload_bytes} bytes of payload arrived where {sum(map(len, room.views))} were expected")
        until = min(deadline, room.until) if room.until else deadline
        receive_views(sock, room.views, until, room.on_filled, behind)
        return message, NOTHING
    if payload_into is None:
        payload_into = memoryview(bytearray(payload_bytes))
    elif len(payload_into) < payload_bytes:
        raise PoolError(f"{payload_bytes} bytes of payload arrived where {len(payload_into)} were requested")
    return message, _filled(sock, payload_into[:payload_bytes], behind, deadline)


def _filled(sock: socket.socket, target: memoryview, first: memoryview, deadline: float) -> memoryview:
    """Fills `target`: with `first`, then from the socket."""
    receive_views(sock, [target], deadline, ahead=first)
    return target


def _more(piece: bytes) -> bytes:
    if not piece:
        raise PoolUnreachableError("the connection was closed in the middle of a frame")
    return piece


def _send_some(sock: socket.socket, views: list[memoryview]) -> int:
    if not isinstance(sock, ssl.SSLSocket):
        return sock.sendmsg(views[:AT_ONCE])
    if len(views) == 2 and len(views[0]) + len(views[1]) <= _READ_AHEAD_BYTES:  # one record for nearly every frame
        return sock.send(b"".join(views))
    return sock.send(views[0][:PIECE_BYTES])


def _after(views: list[memoryview], sent: int) -> list[memoryview]:
    """The buffers without their first `sent` bytes."""
    rest = []
    for view in views:
        if sent < len(view):
            rest.append(view[sent:])
        sent = max(0, sent - len(view))
    return rest


def _set_left(sock: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _restore(sock: socket.socket, timeout: float | None) -> None:
    if sock.gettimeout() != timeout:
        with contextlib.suppress(OSError):  # closed meanwhile: the caller is told by the error under way
            sock.settimeout(timeout)


def _require_sizes(body_bytes: int, payload_bytes: int, max_body_bytes: int) -> None:
    if body_bytes > max_body_bytes or payload_bytes > MAX_CHUNK_BYTES:
        raise PoolError(
            f"a frame of {body_bytes} + {payload_bytes} bytes; at most {max_body_bytes} + {MAX_CHUNK_BYTES} are allowed"
        )
