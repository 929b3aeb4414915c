"""One blocking connection to one memory server.

    link.send(message, deadline)          to several servers, one after the other
    reply = link.receive(Looked, deadline)      then their responses: one round trip for all of them
    reply = link.ask(Looked, message, deadline)     both, for one server
    link.post(message, deadline)          a response without information is read before the next request, not now

It connects at its first use. After any error or timeout the connection is closed, so that a late response is never
taken for another one; then the server is skipped as `ServerBackoff` decides. Every call ends by its deadline. Not
thread-safe.
"""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from hardware.ub.process import ProcessStamp
from serving.errors import (
    ConfigError,
    PoolError,
    PoolRefusedError,
    PoolTimeoutError,
    PoolUnreachableError,
    ProofError,
    in_words,
)
from serving.ids import NodeId
from serving.kvpool.core.messages import (
    Chunk,
    Failed,
    Hello,
    Message,
    Piece,
    Read,
    ToClient,
    Welcome,
    Write,
    Written,
    to_client,
)
from serving.kvpool.core.server_backoff import ServerBackoff
from serving.kvpool.live import frames
from serving.kvpool.live.frames import PayloadRoom
from serving.sockets.opening import connected, read_frame
from serving.sockets.proof import Prover, framed
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import ServerRecord

_R = TypeVar("_R", bound=Message)

MIN_LEFT_S = 0.005
"""With less time left no request starts: it could only end in a timeout that is not the server's fault."""


_Into = Callable[[ToClient, int], PayloadRoom] | None


class _State(Enum):
    CLOSED = auto()
    PROVING = auto()
    """The proof of the secret has started, the server's is due."""
    GREETING = auto()
    """Hello was sent, Welcome is due."""
    IDLE = auto()
    ASKED = auto()
    """A request was sent; the caller needs its response."""
    POSTED = auto()
    """A request was sent; its response is discarded."""


@dataclass(frozen=True, slots=True)
class PoolGreeting:
    """Introduction of a client: its first frame, and the secrets that it can prove before."""

    hello: Hello
    secrets: ClusterSecrets

    @property
    def node(self) -> NodeId:
        """Node of the client."""
        return self.hello.node


def hello_of(name: str, node: NodeId, secret: str | ClusterSecrets) -> PoolGreeting:
    """The introduction of a client in this process."""
    stamp = ProcessStamp.own()
    hello = Hello(name, node, stamp.pid, stamp.start_ticks, stamp.pid_namespace)
    return PoolGreeting(hello, ClusterSecrets.of(secret))


class ServerLink:
    """One client's line to the server that a record describes.

    Args:
        record: of one incarnation at one address; another one needs another link.
    """

    def __init__(self, record: ServerRecord, hello: PoolGreeting) -> None:
        self.name = record.name
        self.connection = 0
        """Counts connections: leases and reservations belong to one and end with it. 0 = there never was one."""
        self.record = record
        """Where the server is."""
        self._hello = hello
        self._sock: socket.socket | None = None
        self._prover: Prover | None = None
        self._state = _State.CLOSED
        self._welcome: Welcome | None = None
        self.backoff = ServerBackoff()
        self._why = "never tried"

    @property
    def welcome(self) -> Welcome | None:
        """The server's introduction on the present connection; None while there is none."""
        return self._welcome

    @property
    def local(self) -> bool:
        """Connected, and to a server whose segment can be mapped here."""
        return self._welcome is not None and self._welcome.node == self._hello.node

    def skipped(self, now: float) -> bool:
        """True while the server is left alone after a failure."""
        return self._sock is None and self.backoff.skips(now)

    def prepare(self, deadline: float) -> None:
        """Connect if needed, and start the handshake without waiting for the server. A failure starts a pause.

        Raises: PoolUnreachableError if no server listens or the server is skipped; PoolTimeoutError.
        """
        if self._state is _State.ASKED:  # the caller was interrupted between question and answer
            self.close()
        if self._sock is not None:
            return
        now = time.monotonic()
        if self.backoff.skips(now):
            raise PoolUnreachableError(
                f"memory server {self.name} is skipped for {self.backoff.retry_at - now:.1f} s: {self._why}"
            )
        if deadline - now < MIN_LEFT_S:
            raise PoolTimeoutError(f"no time was left to connect to memory server {self.name}")
        try:
            self._connect(self.backoff.connect_s(deadline, now))
        except PoolError as error:
            self._broken(error)
            raise

    def send(self, message: Message, deadline: float, payload: Iterable[memoryview] = ()) -> None:
        """Send a request, after reading overdue responses; `receive` must follow. An error closes the connection.

        Raises: PoolTimeoutError, PoolUnreachableError; PoolError for a request that cannot be sent.
        """
        self._begin(message, deadline, payload, _State.ASKED)

    def post(self, message: Message, deadline: float) -> None:
        """Send a request whose response carries no information; it is read before the next request is sent.

        Raises: as `send`.
        """
        self._begin(message, deadline, (), _State.POSTED)

    def receive(self, kind: type[_R], deadline: float, into: _Into = None) -> _R:
        """The response to the request that was sent. Errors other than PoolRefusedError close the connection.

        Args:
            kind: the expected type of response.
            into: target of a payload.
        Raises: PoolRefusedError if the server responded `Failed`; PoolTimeoutError, PoolUnreachableError; PoolError for
            an unexpected response.
        """
        assert self._state is _State.ASKED, f"nothing was asked of {self.name}"
        reply = self._reply(deadline, into)
        self._state = _State.IDLE
        if isinstance(reply, kind):
            return reply
        if isinstance(reply, Failed):
            raise PoolRefusedError(f"memory server {self.name}: {reply.reason}")
        error = PoolError(f"memory server {self.name} sent {type(reply).__name__} where {kind.__name__} was expected")
        self._broken(error)
        raise error

    def ask(self, kind: type[_R], message: Message, deadline: float, payload: Iterable[memoryview] = ()) -> _R:
        """Send a request and receive its response.

        Raises: as `send` and `receive`.
        """
        self.send(message, deadline, payload)
        return self.receive(kind, deadline)

    def read(
        self,
        pieces: Sequence[Piece],
        targets: Sequence[memoryview],
        deadline: float,
        on_filled: Callable[[int], object] | None = None,
    ) -> int:
        """Read bytes of entries of another node's server, straight into their places.

        Args:
            pieces: together at most MAX_CHUNK_BYTES.
            targets: writable bytes, as long as the pieces.
            on_filled: called with the place of each target when it is full.
        Returns: number of targets filled; the server does not have the next one (any more).
        Raises: as `send` and `receive`; PoolRefusedError if it does not have the first one.
        """

        def room(message: ToClient, _nbytes: int) -> PayloadRoom:
            return PayloadRoom(targets[: message.pieces] if isinstance(message, Chunk) else (), on_filled=on_filled)

        self.send(Read(tuple(pieces)), deadline)
        return self.receive(Chunk, deadline, room).pieces

    def write(self, pieces: Sequence[Piece], sources: Sequence[memoryview], deadline: float) -> tuple[bool, ...]:
        """Write bytes of entries to another node's server.

        Args:
            pieces: together at most MAX_CHUNK_BYTES.
            sources: contiguous bytes, as long as the pieces.
        Returns: which of them are in the server's segment.
        Raises: as `send` and `receive`; PoolError if the response does not match.
        """
        ok = self.ask(Written, Write(tuple(pieces)), deadline, sources).ok
        if len(ok) != len(pieces):
            raise PoolError(f"memory server {self.name} answered for {len(ok)} pieces of {len(pieces)}")
        return ok

    def close(self) -> None:
        """Close the connection, and with it all leases and reservations. The next request connects again at once."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._welcome = None
        self._state = _State.CLOSED

    def retire(self) -> None:
        """End the link for good, because its server left the pool. Later requests fail as unreachable."""
        self.close()
        self.backoff.retire()
        self._why = "it left the pool"

    def _begin(self, message: Message, deadline: float, payload: Iterable[memoryview], then: _State) -> None:
        self.prepare(deadline)
        self.settle(deadline)
        left = deadline - time.monotonic()
        if left < MIN_LEFT_S:
            raise PoolTimeoutError(f"no time was left for the request to memory server {self.name}")
        assert self._sock is not None
        try:
            self._sock.settimeout(left)
            frames.send(self._sock, message, payload)
        except PoolError as error:
            self._broken(error)
            raise
        self._state = then

    @property
    def prompt(self) -> bool:
        """Connected, and without a pending response that has not arrived: the next request is sent at once."""
        if self._state in (_State.PROVING, _State.GREETING, _State.POSTED):
            return self._readable()
        return self._state is _State.IDLE

    def settle(self, deadline: float) -> None:
        """Read a pending response: the server's Welcome, or that of a posted request.

        A server that failed before is not waited for: it has to greet between two requests.

        Raises: as `receive`.
        """
        if self._state is _State.PROVING:
            self._prove(deadline)
        if self._state is _State.GREETING:
            now = time.monotonic()
            self._require_prompt(now)
            reply = self._reply(self.backoff.greeting_deadline(deadline, now), None)
            if not isinstance(reply, Welcome) or reply.server != self.name:
                said = reply.reason if isinstance(reply, Failed) else repr(reply)
                error = PoolUnreachableError(f"memory server {self.name} refused the connection: {said}")
                self._broken(error)
                raise error
            self._welcome = reply
            self.connection += 1
            self._state = _State.IDLE
        elif self._state is _State.POSTED:
            self._reply(deadline, None)
            self._state = _State.IDLE

    def _reply(self, deadline: float, into: _Into) -> ToClient:
        assert self._sock is not None
        try:
            # An answer that came while another server was waited for is taken even after the deadline.
            self._sock.settimeout(max(deadline - time.monotonic(), MIN_LEFT_S))
            reply, _ = frames.receive(self._sock, to_client, into)
        except PoolError as error:
            self._broken(error)
            raise
        if self._state is not _State.GREETING:  # a server that only greets is not well
            self.backoff.on_answer()
        return reply

    def _connect(self, timeout_s: float) -> None:
        address = (self.record.host, self.record.port)
        try:
            self._sock, binding = connected(address, timeout_s)
            frames.tune(self._sock)
            self._prover = Prover(frames.POOL_CHANNEL, "client", self._hello.secrets, binding)
            self._sock.sendall(framed(self._prover.opening))
        except TimeoutError as error:
            raise PoolTimeoutError(f"memory server {self.name} at {address} accepts no connection") from error
        except (OSError, ConfigError, ProofError) as error:
            raise PoolUnreachableError(f"memory server {self.name} at {address}: {in_words(error)}") from error
        self._state = _State.PROVING
        self.backoff.on_connected(time.monotonic())

    def _prove(self, deadline: float) -> None:
        """Reply to the server's proof with the client's, and send Hello.

        Raises: PoolUnreachableError, PoolTimeoutError.
        """
        assert self._sock is not None
        assert self._prover is not None
        now = time.monotonic()
        self._require_prompt(now)
        try:
            body = read_frame(self._sock, max(self.backoff.greeting_deadline(deadline, now), now + MIN_LEFT_S))
            self._sock.sendall(framed(self._prover.answer(body)))
            frames.send(self._sock, self._hello.hello)
        except TimeoutError as error:
            late = PoolTimeoutError(f"memory server {self.name} did not prove the secret in time")
            self._broken(late)
            raise late from error
        except (OSError, ProofError) as error:
            gone = PoolUnreachableError(f"memory server {self.name} refused the connection: {in_words(error)}")
            self._broken(gone)
            raise gone from error
        except PoolError as error:
            self._broken(error)
            raise
        self._state = _State.GREETING

    def _require_prompt(self, now: float) -> None:
        if not self.backoff.waits_for_greeting(now) and not self._readable():
            raise PoolUnreachableError(f"memory server {self.name} has not completed a handshake since a failure")

    def _readable(self) -> bool:
        assert self._sock is not None
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def _broken(self, error: PoolError) -> None:
        with contextlib.suppress(OSError):
            self.close()
        self.backoff.on_failure(time.monotonic())
        self._why = str(error)
