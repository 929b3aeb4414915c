"""Listens for clients of a memory server: a thread per connection, a bounded number of them.

A client's leases and reservations are booked under its connection and end with it.
"""

import logging
import socket
import struct
import time
from collections.abc import Callable
from functools import partial

from hardware.ub.process import ProcessStamp
from serving.config.cluster import ANY_PORT, PortRange
from serving.errors import ConfigError, PoolError, PoolUnreachableError, ProofError
from serving.ids import NodeId
from serving.kvpool.core import messages as m
from serving.kvpool.core.session import Session
from serving.kvpool.live.frames import POOL_CHANNEL, receive, send, tune
from serving.kvpool.live.handlers import HandlerContext, handle, room_for
from serving.sockets.acceptor import Acceptor
from serving.sockets.opening import accept_proved, secured
from serving.sockets.proof import Verifier
from serving.sockets.secrets import ClusterSecrets

logger = logging.getLogger(__name__)

HELLO_DEADLINE_S = 5.0
_HELLO_BYTES = 4096
_SEND_S = 30
_OWN_NAMESPACE = ProcessStamp.own().pid_namespace

Greeting = Callable[[int], m.Welcome]


class Connections:
    """All clients of one server.

    Args:
        welcome: makes the answer to a good `Hello`, given the client's number.
    """

    def __init__(
        self, context: HandlerContext, secrets: ClusterSecrets, node: NodeId, limit: int, welcome: Greeting
    ) -> None:
        self._context = context
        self._secrets = secrets
        self._node = node
        self._limit = limit
        self._welcome = welcome
        refused = partial(context.core.meters.add, "connections_refused")
        self._acceptor = Acceptor("kvpool", limit, self._serve, refused)

    @property
    def count(self) -> int:
        """Connections open now."""
        return self._acceptor.count

    @property
    def deaf(self) -> bool:
        """Whether the thread that accepts connections has ended without being stopped."""
        return self._acceptor.deaf

    @property
    def address(self) -> tuple[str, int]:
        """Address for clients."""
        return self._acceptor.address

    def start(self, host: str, ports: PortRange = ANY_PORT) -> tuple[str, int]:
        """Listen on `host`, in a thread.

        Returns: the address bound.
        Raises: PoolUnreachableError if the host cannot be bound; ConfigError if the range has no free port.
        """
        try:
            return self._acceptor.start(host, ports)
        except OSError as error:
            raise PoolUnreachableError(f"cannot listen on {host} ({error}); use an address of this node") from error

    def move(self, host: str) -> None:
        """Listens on another address of this host too, and names that one.

        Raises: OSError if the host cannot be bound; ConfigError if the range has no free port.
        """
        self._acceptor.move(host)

    def stop(self, timeout_s: float) -> None:
        """End every connection and wait for its thread."""
        self._acceptor.stop(timeout_s)

    def _serve(self, raw: socket.socket) -> None:
        session: Session | None = None
        sock = raw
        try:
            sock, binding = secured(raw)
            tune(sock)
            with self._acceptor.watched(raw, sock):
                accept_proved(sock, Verifier(POOL_CHANNEL, self._secrets, binding), time.monotonic() + HELLO_DEADLINE_S)
                session = self._greet(raw, sock)
                if session is not None:
                    self._answer_forever(sock, session)
        except PoolUnreachableError:  # the client left
            logger.debug("client %r disconnected", "?" if session is None else session.name)
        except ProofError as error:
            self._context.core.meters.add("connections_refused")
            logger.warning("a client is refused: %s", error)
        except (PoolError, ConfigError) as error:
            self._context.core.meters.add("connections_broken")
            logger.info("the link of %r is closed: %s", "a stranger" if session is None else session.name, error)
        except OSError as error:
            logger.debug("an unauthenticated client disconnected: %s", error)
        finally:
            self._leave(sock, session)

    def _greet(self, raw: socket.socket, sock: socket.socket) -> Session | None:
        sock.settimeout(HELLO_DEADLINE_S)
        hello, _ = receive(sock, m.to_server, max_body_bytes=_HELLO_BYTES)
        if not isinstance(hello, m.Hello):
            self._context.core.meters.add("connections_refused")
            send(sock, m.Failed("the first frame must be a Hello"))
            return None
        if not self._acceptor.accepted(raw):
            self._context.core.meters.add("connections_refused")
            send(sock, m.Failed(f"this memory server has {self._limit} clients already; try again later"))
            return None
        near = hello.node == self._node and hello.pid_namespace == _OWN_NAMESPACE
        stamp = ProcessStamp(hello.pid, hello.start_ticks, hello.pid_namespace) if near else None
        session = Session(self._context.core.new_number(), hello.client, hello.node, stamp)
        send(sock, self._welcome(session.client))
        # Blocking from now on, at one system call each; only a client that does not take its answers is timed out.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        return session

    def _answer_forever(self, sock: socket.socket, session: Session) -> None:
        context = self._context
        while not self._acceptor.stopping:
            message, payload = receive(sock, m.to_server, partial(room_for, context, session))
            try:
                answer = handle(context, session, message, payload)
            except PoolError as error:
                answer = m.Failed(str(error))
            except Exception as error:  # a bug of ours costs one request, not the server
                context.core.meters.add("internal_errors")
                logger.exception("%s of %r failed", type(message).__name__, session.name)
                answer = m.Failed(f"{type(error).__name__}: {error}")
            if isinstance(answer, tuple):
                send(sock, answer[0], answer[1])
            else:
                send(sock, answer)

    def _leave(self, sock: socket.socket, session: Session | None) -> None:
        core = self._context.core
        if session is not None:
            with core.changed:
                core.manager.client_gone(session.client, core.now())
                core.dispatch()
        sock.close()
