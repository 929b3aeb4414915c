"""One end of a link: receives bytes as whole frames; limits unsent bytes.

Built on `asyncio.Protocol` rather than streams: no task per connection and no copy per read. Each end first requires
the other to prove the secret (`serving/sockets/proof.py`): `connect_proving` on the client's side, `verify` on the
server's.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import cast

from serving.config.cluster import ANY_PORT, PortRange
from serving.errors import ConfigError, LinkError, ProofError, in_words
from serving.sockets.acceptor import listen
from serving.sockets.proof import Channel, Prover, Verifier, framed, refusal
from serving.sockets.secrets import ClusterSecrets
from serving.sockets.tls import binding_of, tls_ends
from serving.values.news import Value
from serving.wire.messages import MAX_FRAME_BYTES, encode

MAX_UNSENT_BYTES = 64 << 20
"""A peer that leaves this much unread is treated as dead: its connection is dropped instead of buffering endlessly."""

_VANISHED = (
    (socket.TCP_KEEPIDLE, 5),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 11_000),  # [ms]; keep-alive probes are not sent while data is unacknowledged
)
"""A silent host is declared dead after 11 s, with or without data to send to it."""


class Connection(asyncio.Protocol):
    """Splits the byte stream into frames and reports the connection's end exactly once."""

    def __init__(
        self, on_frame: Callable[["Connection", bytes], None], on_closed: Callable[["Connection", str], None]
    ) -> None:
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._reason = "connection closed by the peer"
        self._unwanted = False
        self._gate: Callable[[bytes], None] | None = None
        """Receives frames in place of `on_frame` until the secret is proved."""
        self.max_frame_bytes = MAX_FRAME_BYTES
        """A frame announced as larger closes the connection before it is buffered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; asyncio calls this once."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only behave like one
        if self._unwanted:  # closed before it was established
            self._transport.abort()
        raw = transport.get_extra_info("socket")
        if raw is not None:  # a vanished host closes nothing: the kernel must detect it by probes or missing ACKs
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _VANISHED:
                raw.setsockopt(socket.IPPROTO_TCP, option, value)

    def data_received(self, data: bytes) -> None:
        """Collect bytes and deliver every complete frame."""
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
                if self._gate is not None:
                    self._gate(body)
                else:
                    self._on_frame(self, body)
            except ProofError as error:
                return self._refuse(error)
            except LinkError as error:
                return self.close(str(error))
            if self._transport is None:
                return None
        del buffer[:start]
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end; asyncio calls this once per connection."""
        self._transport = None
        self._on_closed(self, in_words(exc) if exc else self._reason)

    @property
    def open(self) -> bool:
        """True while frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: Value) -> bool:
        """Queue one frame. Returns: False if the link is closed, or was dropped because the peer does not read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(encode(message))
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._reason = "the peer does not read"
            transport.abort()
            return False
        return True

    def prove(self, prover: Prover, then: Callable[[], object]) -> None:
        """Prove the secret to a server. Effects: calls `then` once both ends have proved it; an error ends the link."""

        def on_answer(body: bytes) -> None:
            answer = prover.answer(body)
            self._gate = None
            self._send_body(answer)
            then()

        self._gate = on_answer
        self._send_body(prover.opening)

    def verify(self, verifier: Verifier, then: Callable[[], object]) -> None:
        """Require the client to prove the secret before any other frame. Effects: as `prove`."""

        def on_proof(body: bytes) -> None:
            answer = verifier.on_frame(body)
            if answer:
                self._send_body(answer)
            if verifier.proved:
                self._gate = None
                then()

        self._gate = on_proof

    def _send_body(self, body: bytes) -> None:
        if self._transport is not None:
            self._transport.write(framed(body))

    def _refuse(self, error: ProofError) -> None:
        """Send the reason to the other end, and end the link."""
        self._reason = str(error)
        self._gate = _deaf
        if self._transport is not None:
            self._transport.write(framed(refusal(error)))
            self._transport.close()

    def close(self, reason: str) -> None:
        """Close the connection immediately; `on_closed` follows."""
        self._reason = reason
        self._unwanted = True
        if self._transport is not None:
            self._transport.abort()


async def connect_proving(
    connection: Connection,
    address: tuple[str, int],
    channel: Channel,
    role: str,
    secrets: ClusterSecrets,
    then: Callable[[], object],
) -> None:
    """Connect, with TLS if it is on, and start to prove the secret.

    Args:
        connection: must be unused; its `on_closed` follows if one end refuses the other.
        then: called once both ends have proved the secret; only from then on may frames be sent.
    Raises: LinkError for TLS files that cannot be used; OSError if there is no connection.
    """
    try:
        ends = tls_ends()
    except ConfigError as error:
        raise LinkError(str(error)) from error
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(
        lambda: connection, *address, ssl=None if ends is None else ends.client, server_hostname="" if ends else None
    )
    secure = transport.get_extra_info("ssl_object")
    shown = None if secure is None else secure.getpeercert(binary_form=True)
    connection.prove(Prover(channel, role, secrets, binding_of(shown)), then)


def verifier_of(channel: Channel, secrets: ClusterSecrets) -> Verifier:
    """The server's side of a new connection."""
    ends = tls_ends()
    return Verifier(channel, secrets, b"" if ends is None else ends.binding)


def _deaf(_: bytes) -> None:
    """Ignore further frames of a refused client."""


# Accepts links, and loses none of them when it is closed.
#
# When `asyncio.Server` (Python 3.11) is closed, it drops a connection that it has accepted but not given a transport
# yet: that socket stays open, and the peer has a link that is not served.

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
