"""HTTP/1.1 on one connection by uvicorn, with limits on size, time and number of a client's bytes.

uvicorn's parser accepts headers of any length and waits for the rest of a request without a timeout. This protocol
limits the size and the time of request line and headers, requires a body to keep arriving, and for a while reads and
drops what follows a refused request: closing with unread bytes would reset the connection and lose the response.

    idle ──first byte──► head ──complete──► body ──complete──► idle        too much, too slow ──► refused ──► closed

The response's own bytes bypass this code, so that it does not slow down streamed tokens.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serving.gateway.api.http.auth import OPEN_PATHS
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.live.connections import (
    FULL,
    GARBAGE,
    HELD_HEADS_BYTES,
    LATE_BODY,
    LATE_HEAD,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionSlot,
    address_of,
    headers_in,
    too_large,
    wire,
)

PROBE_HEAD_S = 1.0
"""Time limit for the request on one of the few connections reserved for health checks."""
LINGER_S = 10.0
LINGER_BYTES = 256 << 20
"""Time and bytes for which data is read and dropped after a request that was answered before it was complete."""
_HEADER_EXTRA = 4
"""Colon, space and line end."""
_OFFER = (b"upgrade", b"http2-settings")
"""Headers, and words of the header `Connection`, that offer another protocol."""


def guarded_protocol(limits: ConnectionLimits, connections: ConnectionLimiter | None = None) -> type["GuardedProtocol"]:
    """The protocol class of one HTTP server, for `uvicorn.Config(http=...)`."""
    own = ConnectionLimiter(limits) if connections is None else connections
    given = limits

    class FrontDoorProtocol(GuardedProtocol):
        limits = given
        ledger = own

    return FrontDoorProtocol


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    ledger: ClassVar[ConnectionLimiter] = ConnectionLimiter(ConnectionLimits())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._place = ConnectionSlot.NONE
        self._address = ""
        self._in_head = False
        self._in_body = False
        self._head_bytes = 0
        """Bytes of the current head, or of trailers since the last bytes of the current body."""
        self._offered = False
        """Whether the current head offers another protocol."""
        self._ended_here = False
        """Whether a message ended within the bytes being parsed."""
        self._held = 0
        """This connection's part of `ledger.held_bytes`."""
        self._refused: ErrorReply | None = None
        self._dropping = False
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._body_began = 0.0
        self._body_moved = 0.0

    @classmethod
    def configure(cls, limits: ConnectionLimits) -> None:
        """Apply other limits to new connections, and to the next request of open ones."""
        cls.limits = limits
        cls.ledger.configure(limits)

    # ---- the connection --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Assign a slot, or refuse the connection."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._address = address_of(self.client[0] if self.client else "")
        self._place = self.ledger.enter(self._address)
        if self._place is ConnectionSlot.NONE:
            self._turn_away()
            return
        wait_s = PROBE_HEAD_S if self._place is ConnectionSlot.PROBE else self.limits.head_timeout_s
        self._arm(wait_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's timer, reserved bytes and slot."""
        self._disarm()
        self._hold(0)
        self.ledger.leave(self._address, self._place)
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes within the limits."""
        if self._dropping:
            self._drop(len(data))
            return
        self._unset_keepalive_if_required()
        self._ended_here = False
        self._head_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refused or GARBAGE)
            return
        self._look_after(len(data))

    def _parse(self, data: bytes) -> None:
        """Feed the parser. An offer to switch to another protocol is declined by handling the request without it.

        Java's client offers HTTP/2 with every request. The parser would stop there and lose the body.
        Raises: httptools.HttpParserError.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = self._declined() + data[offer.args[0] :]
                self._offered = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _declined(self) -> bytes:
        """The current head without the offer."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = [one for one in value.split(b",") if one.strip().lower() not in _OFFER]
                lines += [b"connection: " + b",".join(kept)] if kept else []
            elif name not in _OFFER:
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _look_after(self, size: int) -> None:
        """Check limits and set deadlines after these bytes were parsed."""
        if self._in_body:
            self._look_after_body(size)
            return
        if self._ended_here:  # it is unknown how many of these bytes belong to the next head; later bytes are counted
            self._head_bytes = 1 if self._in_head else 0
        if self._head_bytes > self.limits.max_head_bytes:
            self._refuse(too_large(self.limits.max_head_bytes))
            return
        self._hold(self._head_bytes)
        if self.ledger.held_bytes > HELD_HEADS_BYTES:
            self._refuse(FULL)
        elif self._head_bytes and self._timer is None:
            self._arm(self.limits.head_timeout_s, self._head_late)

    def _look_after_body(self, size: int) -> None:
        if self._head_bytes > self.limits.max_head_bytes:  # extensions of chunks, or trailers
            self._refuse(too_large(self.limits.max_head_bytes))
        elif self.cycle.response_complete:
            self._dropped += size
            if self._dropped > LINGER_BYTES:
                self._close()
        elif self._timer is None:
            self._body_began = self._body_moved = self.loop.time()
            self._arm(min(self.limits.body_timeout_s, self.limits.request_timeout_s), self._body_late)

    # ---- parser callbacks ------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Start a new request."""
        self._in_head = True
        self._dropped = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the request, if it is allowed."""
        size = len(self.url) + sum(len(name) + len(value) + _HEADER_EXTRA for name, value in self.headers)
        if size > self.limits.max_head_bytes:
            self._refused = too_large(self.limits.max_head_bytes)
            raise ValueError("too large")  # stops the parser; `data_received` responds
        path = self.url.partition(b"?")[0].decode("latin-1")
        if self._place is ConnectionSlot.PROBE and path not in OPEN_PATHS:
            self._refused = FULL
            raise ValueError("too many")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("no proxy")
            self._offered = True
            return
        super().on_headers_complete()
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._disarm()
        self._hold(0)
        if self.scope["http_version"] == "1.0":  # has no chunks: closing the connection ends the response
            self.cycle.chunked_encoding = False
            self.cycle.send = partial(_send_unframed, self.cycle, self.cycle.send)  # type: ignore[method-assign]
        if self._place is ConnectionSlot.PROBE:
            self.cycle.keep_alive = False
        self.cycle.transport = cast(asyncio.Transport, _Exchange(self.transport, self._close_gently))

    def on_body(self, body: bytes) -> None:
        """Handle a piece of the body."""
        self._head_bytes = 0
        self._body_moved = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of the request."""
        if self._offered:
            return
        self._in_body, self._head_bytes, self._ended_here = False, 0, True
        self._disarm()
        super().on_message_complete()
        if self.cycle.response_complete and not self._dropping:  # the response was sent before
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """After the response, limit the time for the unread rest of the request."""
        super().on_response_complete()
        if self._in_body and not self._dropping and self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self._arm(LINGER_S, self._close)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that stayed idle after a response."""
        if not self._dropping:  # dropping has its own end
            self._close()

    # ---- refusals --------------------------------------------------------------------------------------------------

    def _head_late(self) -> None:
        self._timer = None
        if self._busy:  # with an earlier request: the client does not wait for this one yet
            self._arm(self.limits.head_timeout_s, self._head_late)
        elif self._place is ConnectionSlot.PROBE:
            self._refuse(FULL)
        elif self._in_head or self._head_bytes:
            self._refuse(LATE_HEAD)
        else:
            self._close()

    def _body_late(self) -> None:
        """Refuse a body that stalls or exceeds the request's time; while the application does not read it, it waits."""
        self._timer = None
        now = self.loop.time()
        if self.flow.read_paused:
            self._body_moved = now
        left = min(
            self._body_moved + self.limits.body_timeout_s - now, self._body_began + self.limits.request_timeout_s - now
        )
        if left > 0:
            self._arm(left, self._body_late)
        else:
            self._refuse(LATE_BODY)

    def _refuse(self, reply: ErrorReply) -> None:
        """Respond instead of the application, if it has not yet, and close after the client had time to read.

        Effects: the application sees its request, if there is one, as abandoned by the client.
        """
        mine = self._in_body and not self.cycle.response_started and not self.pipeline
        if self._busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if (self._busy or self._in_body) and not mine:  # the response in progress is for another request, or started
            self._close()
            return
        headers = self.headers if self._in_head or self._in_body else []
        self.transport.write(wire(reply, headers, self.limits.allowed_origins))
        self._linger()

    @property
    def _busy(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _turn_away(self) -> None:
        """Refuse a connection without a slot. It is closed immediately, so bytes already sent are read before."""
        sock = self.transport.get_extra_info("socket")
        asked = b""
        with suppress(OSError):
            asked = os.read(sock.fileno(), self.limits.max_head_bytes)
        self._dropping = True
        self.transport.write(wire(FULL, headers_in(asked), self.limits.allowed_origins))
        self._close()

    def _close_gently(self) -> None:
        """Close the connection after the response has been sent."""
        if self._in_body and not self._dropping:
            self._linger()
        elif not self._dropping:
            self._close()

    def _linger(self) -> None:
        """Shut down writing, and drop what arrives until the client closes, within limits."""
        self._dropping = True
        self._dropped = 0
        self._hold(0)
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._arm(LINGER_S, self._close)

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > LINGER_BYTES:
            self._close()

    def _close(self) -> None:
        """Close as soon as the client has received all output, but with a time limit."""
        self._dropping = True
        unsent = self.transport.get_write_buffer_size()
        self.transport.close()
        if unsent:
            self._arm(self.limits.body_timeout_s, lambda: self._give_up(unsent))

    def _give_up(self, unsent: int) -> None:
        self._timer = None
        left = self.transport.get_write_buffer_size()
        if left >= unsent:
            self.transport.abort()
        else:
            self._arm(self.limits.body_timeout_s, lambda: self._give_up(left))

    # ---- bookkeeping -----------------------------------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        self.ledger.held_bytes += size - self._held
        self._held = size

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Exchange:
    """Transport of one exchange; closing it waits until the client has read the response."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


async def _send_unframed(
    cycle: RequestResponseCycle, send: Callable[[Any], Awaitable[None]], message: dict[str, Any]
) -> None:
    """Send each piece with its own length: uvicorn would frame a response of unknown length, or count it."""
    if message["type"] == "http.response.body":
        cycle.expected_content_length = len(message.get("body", b""))
    await send(message)
