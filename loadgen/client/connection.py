"""One HTTP/1.1 connection: timestamps received bytes and passes them on unparsed.

This is the hot path: `data_received` runs once per read, in the worst case once per token of every stream. It takes
the time first, then removes HTTP's framing with the parser (httptools, C), and appends the payload to the exchange.
Work that can be deferred is not done in this path. Behaviours that need more (slow readers, disconnects after n chunks)
set the function `after_read`; for all others it costs one comparison.
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import cast

import httptools

from loadgen.client.digest import read_ahead
from loadgen.client.exchange import Exchange, Failure
from loadgen.client.request import PreparedRequest
from loadgen.plan import Behaviour, Conduct

LONG_STREAM_PARTS = 4096
"""Parts after which a stream's start is interpreted while the rest still arrives: about 1.5 MB of a stream that sends
a token per read.
"""


class ClientMeter:
    """Counts of the client's work so far, for live display. `chunks` counts `data:` lines: tokens, roughly."""

    __slots__ = ("bytes", "chunks", "connections", "reads", "retries")

    def __init__(self) -> None:
        self.bytes = 0
        self.chunks = 0
        self.connections = 0
        self.reads = 0
        self.retries = 0


class ExchangeConnection(asyncio.Protocol):
    """Carries one exchange at a time.

    Attributes:
        reusable: the last response ended in a way that allows another request.
        gone_unanswered: it broke before any byte of the response; on a reused connection this means that the server
            closed it while the request was in transit.
        lost: it is closed permanently.
        after_read: called with the size of each read while an exchange runs.
    """

    __slots__ = (
        "_broken",
        "_delimited",
        "_exchange",
        "_feed",
        "_interim",
        "_now",
        "_on_long",
        "_on_lost",
        "_parser",
        "_t0",
        "_waiter",
        "after_read",
        "gone_unanswered",
        "lost",
        "meter",
        "reusable",
        "transport",
    )

    def __init__(
        self,
        t0: float,
        meter: ClientMeter,
        on_lost: "Callable[[ExchangeConnection], None]",
        on_long: Callable[[Exchange], None],
    ) -> None:
        self.meter = meter
        self.reusable = False
        self.gone_unanswered = False
        self.lost = False
        self.after_read: Callable[[int], None] | None = None
        self.transport: asyncio.Transport | None = None
        self._t0 = t0
        self._on_lost = on_lost
        self._on_long = on_long
        self._exchange: Exchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._now = 0.0
        self._delimited = False  # the end of the body is known without the connection's end
        self._interim = False  # a 1xx answer, another one follows
        self._broken = False

    def send(self, request: PreparedRequest, exchange: Exchange, waiter: "asyncio.Future[None]") -> None:
        """Write one request.

        Args:
            waiter: resolved when the response is complete, or the exchange failed; the exchange holds the result.
        """
        assert self.transport is not None, "send before the connection was made"
        self._exchange = exchange
        self._waiter = waiter
        self._delimited = self._interim = self.reusable = self.gone_unanswered = False
        if self.transport.is_closing():  # closed by the server since it was kept; connection_lost is on its way
            self._lost("closed by the server")
        else:
            self.transport.write(request.wire)

    def leave(self, failure: Failure, error: str) -> None:
        """End the exchange from our side.

        Effects: closes the connection at once, without waiting for anything.
        """
        self._fail(failure, error, monotonic() - self._t0)
        self.abort()

    def abort(self) -> None:
        """Close at once. Its exchange must have failed already, or have no waiter any more."""
        self._exchange = self._waiter = None
        if self.transport is not None:
            self.transport.abort()

    # -- called by the event loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Disable delays, so that each request is sent immediately."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.meter.connections += 1
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Record the time of a read, strip the framing, and append the payload to the exchange."""
        self._now = monotonic() - self._t0
        exchange = self._exchange
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._not_http(error)
            return
        meter = self.meter
        meter.reads += 1
        meter.chunks += data.count(b"data:")
        meter.bytes += len(data)
        if self.after_read is not None and self._exchange is not None:
            self.after_read(len(data))
        elif exchange is not None and len(exchange.parts) >= LONG_STREAM_PARTS and self._exchange is exchange:
            self._on_long(exchange)

    def eof_received(self) -> None:
        """Leave closing to the transport, which then calls `connection_lost`."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete a body without a length, or fail the exchange that was cut off."""
        exchange = self._exchange
        if exchange is not None:
            if exc is None and exchange.status and not self._delimited and not self._interim:
                self._finish(monotonic() - self._t0)
            else:
                self._lost("closed by the server" if exc is None else _cause(exc))
        self.reusable = False
        self.lost = True
        self._on_lost(self)

    # -- called by the parser --

    def on_message_begin(self) -> None:
        """First byte of a status line."""
        exchange = self._exchange
        if exchange is None:
            raise ValueError("bytes after the end of the answer")
        exchange.first_byte_s = self._now

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few headers that are used."""
        exchange = self._exchange
        assert exchange is not None, "on_message_begin lets nothing pass without an exchange"
        lowered = name.lower()
        if lowered in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        elif lowered == b"content-type":
            exchange.content_type = value.decode("latin-1")
        elif lowered == b"retry-after":
            exchange.retry_after = value.decode("latin-1")
        elif lowered == b"x-request-id" and value:
            exchange.request_id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Record the status."""
        assert self._exchange is not None
        status = self._parser.get_status_code()
        self._interim = status < 200
        if not self._interim:
            self._exchange.status = status

    def on_body(self, body: bytes) -> None:
        """One HTTP chunk (or the part of it that was read)."""
        exchange = self._exchange
        if exchange is not None:
            exchange.times.append(self._now)
            exchange.parts.append(body)

    def on_message_complete(self) -> None:
        """The response is complete, unless it was an interim one (100 Continue)."""
        if self._interim:
            self._interim = self._delimited = False
            if self._exchange is not None:
                self._exchange.first_byte_s = None
            return
        self.reusable = self._parser.should_keep_alive() and not self._broken
        self._finish(self._now)

    # -- ends --

    def _finish(self, now_s: float) -> None:
        exchange, waiter = self._exchange, self._waiter
        self._exchange = self._waiter = None
        if exchange is not None:
            exchange.ended_s = now_s
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, failure: Failure, error: str, now_s: float) -> None:
        if self._exchange is not None:
            self._exchange.failure = failure
            self._exchange.error = error
            self._finish(now_s)

    def _lost(self, cause: str) -> None:
        exchange = self._exchange
        assert exchange is not None
        self.gone_unanswered = exchange.first_byte_s is None
        when = "before a response arrived" if self.gone_unanswered else "in the middle of the answer"
        self._fail(Failure.LOST, f"connection {cause} {when}", monotonic() - self._t0)

    def _not_http(self, error: Exception) -> None:
        self._broken = True
        self.reusable = False
        words = "the server changes the protocol" if isinstance(error, httptools.HttpParserUpgrade) else f"{error}"
        self._fail(Failure.NOT_HTTP, f"not a valid HTTP/1.1 answer: {words}", self._now)
        self.abort()


def _cause(exc: Exception) -> str:
    if isinstance(exc, ConnectionResetError | BrokenPipeError):
        return "reset by the server"
    return f"lost ({' '.join(str(exc).split()) or type(exc).__name__})"


# Behaviours applied to one exchange: when it is given up, and what happens after each read.

_WORTH_PAUSING_S = 0.001
"""Shorter waits are added to the next one: the event loop's timers are no finer."""


@dataclass(frozen=True, slots=True)
class ExchangeLimit:
    """Time limit of an exchange [s after its start] and the failure it is recorded as."""

    after_s: float
    failure: Failure
    error: str


def limit_of(behaviour: Behaviour, request_timeout_s: float) -> ExchangeLimit:
    """The earlier of the run's own limit and the behaviour's."""
    chosen, error = None, ""
    if behaviour.conduct is Conduct.DISCONNECT:
        chosen = behaviour.leave_after_s
        error = "left on purpose"
    elif behaviour.conduct is Conduct.TIMEOUT:
        chosen = behaviour.give_up_after_s
        error = "gave up on purpose"
    if chosen is not None and chosen <= request_timeout_s:
        return ExchangeLimit(chosen, Failure.LEFT, f"{error} after {chosen:.3g} s")
    return ExchangeLimit(request_timeout_s, Failure.DEADLINE, f"not complete after {request_timeout_s:g} s")


def watch(exchange: Exchange, connection: ExchangeConnection) -> Callable[[int], None] | None:
    """The action after each read of an exchange; None for no action."""
    behaviour = exchange.behaviour
    if behaviour.conduct is Conduct.DISCONNECT and behaviour.leave_after_chunks is not None:
        return Departure(exchange, connection, behaviour.leave_after_chunks)
    if behaviour.conduct is Conduct.SLOW_READER and behaviour.read_bytes_per_s:
        return SlowReading(connection, behaviour.read_bytes_per_s)
    return None


class Departure:
    """Leaves after so many chunks of content. The only one that has to interpret a stream while it arrives."""

    def __init__(self, exchange: Exchange, connection: ExchangeConnection, after_chunks: int) -> None:
        self._exchange = exchange
        self._connection = connection
        self._after_chunks = after_chunks

    def __call__(self, received: int) -> None:
        """After a read.

        Effects: may close the connection.
        """
        reader = read_ahead(self._exchange)
        if reader.content_chunks >= self._after_chunks:
            chunks = reader.content_chunks
            self._connection.leave(Failure.LEFT, f"left on purpose after {chunks} chunk{'s' * (chunks != 1)}")


class SlowReading:
    """Reads so many bytes per second on average, by not reading for a while after each read."""

    def __init__(self, connection: ExchangeConnection, bytes_per_s: float) -> None:
        self._connection = connection
        self._bytes_per_s = bytes_per_s
        self._paid_until = 0.0

    def __call__(self, received: int) -> None:
        """After a read.

        Effects: pauses reading until the received bytes match the allowed rate.
        """
        now = monotonic()
        self._paid_until = max(self._paid_until, now) + received / self._bytes_per_s
        wait = self._paid_until - now
        transport = self._connection.transport
        if wait >= _WORTH_PAUSING_S and transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(wait, self._resume)

    def _resume(self) -> None:
        transport = self._connection.transport
        if transport is not None and not transport.is_closing():
            transport.resume_reading()
