"""Sends requests over kept connections and returns the raw responses.

Every failure of a single request is a value on its `Exchange`; `exchange` raises only the cancellation of its own task.
The clock is the system's monotonic one, never the event loop's, which is cached and coarse.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from loadgen.client.connection import ClientMeter, ExchangeConnection, ExchangeLimit, limit_of, watch
from loadgen.client.digest import read_some
from loadgen.client.exchange import Exchange, Failure, Keep
from loadgen.client.malformed import malform
from loadgen.client.request import PreparedRequest, RequestWriter, ServerAddress, parse_address, tls_context
from loadgen.endpoint import Endpoint
from loadgen.plan import Behaviour, Conduct

_NORMAL = Behaviour()
_NEVER_KEPT = frozenset({Conduct.SLOW_READER, Conduct.MALFORMED})
"""A slow reader has a connection with a small buffer of its own. After a malformed request a server may keep the
connection open in a state in which the next, innocent request would suffer."""


class LoadClient:
    """One event loop's connections to one endpoint.

    Attributes:
        meter: what was received so far, for live display.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        t0: float,
        keep: Keep = Keep(),  # noqa: B008 # frozen
        connect_timeout_s: float = 10.0,
        request_timeout_s: float = 600.0,
        max_idle: int = 4096,
    ) -> None:
        """Prepare; connections are opened when they are needed.

        Args:
            t0: the run's start, `time.monotonic()`; every stamp counts from it.
            max_idle: connections kept open for later requests.
        Raises: UsageError if the endpoint's address is none.
        """
        self.meter = ClientMeter()
        self.keep = keep
        self._t0 = t0
        self._address = parse_address(endpoint.base_url)
        self._dialer = Dialer(self._address, tls_context(endpoint))
        self._writer = RequestWriter(endpoint)
        self._connect_timeout_s = connect_timeout_s
        self._request_timeout_s = request_timeout_s
        self._max_idle = max_idle
        self._idle: dict[ExchangeConnection, None] = {}  # insertion order: the one used last is taken first
        self._open: set[ExchangeConnection] = set()
        self._running: dict[Exchange, asyncio.Timeout] = {}

    @property
    def running(self) -> int:
        """Exchanges in progress."""
        return len(self._running)

    def prepare(self, body: bytes, request_id: str) -> PreparedRequest:
        """Render a request ahead of its time."""
        return self._writer.prepare(body, request_id)

    async def exchange(self, request: PreparedRequest, behaviour: Behaviour = _NORMAL) -> Exchange:
        """Send a request immediately and receive its response until it is complete or interrupted.

        A request on a kept connection that turns out dead before any byte of the response is sent once more on a new
        one: servers may close idle connections at any time, which is not a failure of this request. `started_s` stays
        that of the first attempt.

        Returns: stamps, status and raw bytes; `failure` is the reason for an early end.
        """
        if behaviour.conduct is Conduct.MALFORMED:
            request = malform(self._writer, request, behaviour.malformation)
        exchange = Exchange(request.request_id, behaviour, monotonic() - self._t0)
        if self.keep.body:
            exchange.body = request.body
        limit = limit_of(behaviour, self._request_timeout_s)
        guard = self._running[exchange] = asyncio.timeout(limit.after_s)
        try:
            async with guard:
                await self._attempt(exchange, request)
        except TimeoutError:
            self._end(exchange, limit)
        finally:
            del self._running[exchange]
        return exchange

    def cut(self) -> None:
        """End every running exchange now, as one that the end of the run overtook.

        Effects: closes their connections; each `exchange` call returns soon afterwards with `Failure.CUT`.
        """
        now = asyncio.get_running_loop().time()
        for exchange, guard in self._running.items():
            if exchange.ended_s is None and exchange.failure is None and not guard.expired():
                exchange.failure, exchange.error = Failure.CUT, "the run ended first"
                guard.reschedule(now)

    async def close(self) -> None:
        """Close all connections and wait at most one second for them."""
        self.cut()
        self._max_idle = 0
        deadline = monotonic() + 1.0
        while (self._open or self._running) and monotonic() < deadline:
            for connection in [*self._idle]:
                connection.abort()
            await asyncio.sleep(0.001)
        for connection in [*self._open]:
            connection.abort()
        await asyncio.sleep(0)

    async def _attempt(self, exchange: Exchange, request: PreparedRequest) -> None:
        own = exchange.conduct in _NEVER_KEPT
        connection = None if own else self._take_idle()
        kept = connection is not None
        if connection is None:
            connection = await self._connect(exchange)
        while connection is not None:
            await self._converse(connection, exchange, request)
            if not (kept and connection.gone_unanswered and exchange.failure is Failure.LOST):
                return
            kept = False
            self.meter.retries += 1
            exchange.failure, exchange.error, exchange.ended_s = None, "", None
            connection = await self._connect(exchange)

    async def _converse(self, connection: ExchangeConnection, exchange: Exchange, request: PreparedRequest) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        connection.after_read = watch(exchange, connection)
        connection.send(request, exchange, waiter)
        try:
            await waiter
        finally:
            connection.after_read = None
            self._settle(connection, exchange)

    def _settle(self, connection: ExchangeConnection, exchange: Exchange) -> None:
        """Keep the connection for a later request, or close it."""
        transport = connection.transport
        fine = connection.reusable and exchange.failure is None and exchange.ended_s is not None
        fine = fine and exchange.conduct not in _NEVER_KEPT and len(self._idle) < self._max_idle
        if fine and transport is not None and not transport.is_closing() and not transport.get_write_buffer_size():
            self._idle[connection] = None
        else:
            connection.abort()

    def _take_idle(self) -> ExchangeConnection | None:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def _connect(self, exchange: Exchange) -> ExchangeConnection | None:
        """A fresh connection; None if connecting failed, which is recorded on the exchange."""
        begun = monotonic()
        slow = exchange.conduct is Conduct.SLOW_READER
        try:
            async with asyncio.timeout(self._connect_timeout_s) as connecting:
                connection = await self._dialer.open(self._new_connection, small_buffer=slow)
        except OSError as error:  # a TimeoutError is one
            late = f"no connection within {self._connect_timeout_s:g} s ({self._address.authority})"
            words = late if connecting.expired() else connect_error(error, self._address)
            exchange.failure, exchange.error = Failure.CONNECT, words
            exchange.ended_s = monotonic() - self._t0
            return None
        exchange.connect_s = monotonic() - begun
        if not connection.lost:
            self._open.add(connection)
        return connection

    def _new_connection(self) -> ExchangeConnection:
        return ExchangeConnection(self._t0, self.meter, self._forget, read_some)

    def _forget(self, connection: ExchangeConnection) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)

    def _end(self, exchange: Exchange, limit: ExchangeLimit) -> None:
        """Time is up; a response that was complete at that moment stays complete."""
        if exchange.ended_s is None:
            exchange.ended_s = monotonic() - self._t0
            if exchange.failure is None:
                exchange.failure, exchange.error = limit.failure, limit.error


# Opening connections: cached name resolution, addresses tried in order, one-line error descriptions.
#
# A name is resolved again after ten seconds (as in aiohttp), so that connections neither wait for a lookup each nor use
# a single host for the whole run.

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
