"""One end of a link: bytes in, whole frames out; writes bounded.

Built on `asyncio.Protocol` rather than streams: no task per connection and no copy per read.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from serving.errors import LinkError
from serving.values.news import Value
from serving.wire.messages import MAX_FRAME_BYTES, encode

MAX_UNSENT_BYTES = 64 << 20
"""A peer that leaves this much unread is treated as dead: its connection is dropped, never buffered for ever."""

_VANISHED = (
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 11_000),  # [ms]; nobody is asked while something is unacknowledged
)
"""A host that says nothing any more is given up after 11 s, whether there is something to send to it or not."""


class Connection(asyncio.Protocol):
    """Splits the byte stream into frames and reports the end of the connection exactly once."""

    def __init__(
        self, on_frame: Callable[["Connection", bytes], None], on_closed: Callable[["Connection", str], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._reason = "closed by the peer"
        self._unwanted = False
        self.max_frame_bytes = MAX_FRAME_BYTES
        """What is announced as larger ends the connection before it is buffered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this once."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only behave like one
        if self._unwanted:  # closed before it was made
            self._transport.abort()
        raw = transport.get_extra_info("socket")
        if raw is not None:  # a vanished host closes nothing: let the kernel ask, or wait in vain for what was sent
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _VANISHED:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        """Collect bytes and hand out every complete frame."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big")
            if size > self.max_frame_bytes:
                return self.close(f"announced a frame of {size} bytes")
            if len(buffer) - start - 4 < size:
                break
            body = bytes(buffer[start + 4 : start + 4 + size])
            start += 4 + size
            try:
                self._on_frame(self, body)
            except LinkError as error:
                return self.close(str(error))
            if self._transport is None:
                return None
        del buffer[:start]
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end; asyncio calls this once per connection."""
        self._transport = None
        self._on_closed(self, str(exc) if exc else self._reason)

    @property
    def open(self) -> bool:
        """True while frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Value) -> bool:
        """Queue one frame. Returns False when the link is gone or had to be dropped because the peer does not read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(encode(message))
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._reason = "the peer does not read"
            transport.abort()
            return False
        return True

    def close(self, reason: str) -> None:
        """End the connection now; `on_closed` follows."""
        self._reason = reason
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()
