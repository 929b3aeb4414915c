"""Listens for clients of a memory server: a thread per connection, a bounded number of them.

A client's leases and reservations are booked under its connection and end with it.
"""

import contextlib
import hmac
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable

from hardware.ub.process import ProcessStamp
from serving.errors import PoolError, PoolUnreachableError
from serving.ids import NodeId
from serving.kvpool.core import messages as m
from serving.kvpool.live.frames import receive, send, tune
from serving.kvpool.live.handlers import Desk, handle
from serving.kvpool.live.session import Session

logger = logging.getLogger(__name__)

HELLO_DEADLINE_S = 5.0
MOST_STRANGERS = 64
"""Who says Hello says it at once: with more that have not, the oldest is closed, so that clients always get in."""
_HELLO_BYTES = 4096
_SEND_S = 30
_REFUSAL_S = 0.1
_BACKLOG = 128
_OWN_NAMESPACE = ProcessStamp.own().pid_namespace

Greeting = Callable[[int], m.Welcome]


class Connections:
    """All clients of one server.

    Args:
        welcome: makes the answer to a good `Hello`, given the client's number.
    """

    def __init__(self, desk: Desk, secret: str, node: NodeId, limit: int, welcome: Greeting) -> None:
        self._desk = desk
        self._secret = secret.encode()
        self._node = node
        self._limit = limit
        self._welcome = welcome
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._strangers: dict[socket.socket, None] = {}
        """Of those that are open: which have not said Hello, the oldest first."""
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._stopping = False

    @property
    def count(self) -> int:
        """Connections open now."""
        return len(self._open)

    @property
    def deaf(self) -> bool:
        """Whether nobody accepts any more, although nobody asked for that."""
        return self._acceptor is not None and not self._acceptor.is_alive() and not self._stopping

    def start(self, host: str) -> tuple[str, int]:
        """Listens on `host` at a free port.

        Returns: the address bound.
        Raises: PoolUnreachableError if the host cannot be bound.
        Effects: a thread that accepts.
        """
        try:
            self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        except OSError as error:
            raise PoolUnreachableError(f"cannot listen on {host} ({error}); take an address of this node") from error
        self._acceptor = threading.Thread(target=self._accept_forever, name="kvpool-accept", daemon=True)
        self._acceptor.start()
        bound = self._listener.getsockname()
        return str(bound[0]), int(bound[1])

    def stop(self, timeout_s: float) -> None:
        """Ends every connection and waits for its thread.

        Effects: nobody is served any more.
        """
        self._stopping = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
            self._listener.close()
        deadline = time.monotonic() + timeout_s
        if self._acceptor is not None:
            self._acceptor.join(timeout_s)
        with self._lock:
            left = dict(self._open)
        for sock in left:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in left.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _accept_forever(self) -> None:
        assert self._listener is not None
        while not self._stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if not self._stopping:
                    logger.warning("cannot accept a client (%s); raise the limit of open files", error)
                    time.sleep(_REFUSAL_S)
                continue
            if self._full():
                self._refuse(sock)
                continue
            thread = threading.Thread(target=self._serve, args=(sock,), name="kvpool-client", daemon=True)
            with self._lock:
                self._make_room()
                self._open[sock] = thread
                self._strangers[sock] = None
            try:
                thread.start()
            except RuntimeError:  # no more threads: as one client too many
                with self._lock:
                    del self._open[sock], self._strangers[sock]
                self._refuse(sock)

    def _full(self) -> bool:
        """Whether there are as many clients as there may be; strangers are none."""
        return len(self._open) - len(self._strangers) >= self._limit

    def _make_room(self) -> None:
        """Close the oldest stranger if there are many. Its own thread notices that and ends."""
        while len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self._desk.core.meters.add("connections_refused")
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    def _refuse(self, sock: socket.socket) -> None:
        """Tells one client too many. Its Hello is read first: closing on unread bytes would destroy our answer."""
        self._desk.core.meters.add("connections_refused")
        with sock, contextlib.suppress(PoolError):
            sock.settimeout(_REFUSAL_S)
            with contextlib.suppress(PoolError):
                receive(sock, m.to_server, max_body_bytes=_HELLO_BYTES)
            send(sock, m.Failed(self._too_many()))

    def _too_many(self) -> str:
        return f"this memory server has {self._limit} clients already; try again later"

    def _serve(self, sock: socket.socket) -> None:
        session: Session | None = None
        try:
            tune(sock)
            session = self._greet(sock)
            if session is not None:
                self._answer_forever(sock, session)
        except PoolUnreachableError:  # the client left
            logger.debug("the client %r left", "?" if session is None else session.name)
        except PoolError as error:
            self._desk.core.meters.add("connections_broken")
            logger.info("the link of %r is closed: %s", "a stranger" if session is None else session.name, error)
        finally:
            self._leave(sock, session)

    def _greet(self, sock: socket.socket) -> Session | None:
        sock.settimeout(HELLO_DEADLINE_S)
        hello, _ = receive(sock, m.to_server, max_body_bytes=_HELLO_BYTES)
        refusal = self._refusal(hello)
        if refusal is not None or not isinstance(hello, m.Hello):
            self._desk.core.meters.add("connections_refused")
            send(sock, m.Failed(refusal or ""))
            return None
        with self._lock:
            full = self._full()  # several may have come at once
            if not full:
                self._strangers.pop(sock, None)
        if full:
            self._desk.core.meters.add("connections_refused")
            send(sock, m.Failed(self._too_many()))
            return None
        near = hello.node == self._node and hello.pid_namespace == _OWN_NAMESPACE
        stamp = ProcessStamp(hello.pid, hello.start_ticks, hello.pid_namespace) if near else None
        session = Session(self._desk.core.new_number(), hello.client, hello.node, stamp)
        send(sock, self._welcome(session.client))
        # Blocking from now on, at one system call each; only a client that does not take its answers is timed out.
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_S, 0))
        return session

    def _refusal(self, hello: m.ToServer) -> str | None:
        if not isinstance(hello, m.Hello):
            return "the first frame must be a Hello"
        if not hmac.compare_digest(hello.secret.encode(), self._secret):
            return "wrong secret; take that of this cluster"
        if hello.protocol != m.PROTOCOL:
            return f"protocol {hello.protocol}, this server speaks {m.PROTOCOL}; use the same release everywhere"
        return None

    def _answer_forever(self, sock: socket.socket, session: Session) -> None:
        desk = self._desk
        while not self._stopping:
            message, payload = receive(sock, m.to_server)
            try:
                answer = handle(desk, session, message, payload)
            except PoolError as error:
                answer = m.Failed(str(error))
            except Exception as error:  # a bug of ours costs one request, not the server
                desk.core.meters.add("internal_errors")
                logger.exception("%s of %r failed", type(message).__name__, session.name)
                answer = m.Failed(f"{type(error).__name__}: {error}")
            if isinstance(answer, tuple):
                send(sock, answer[0], (answer[1],))
            else:
                send(sock, answer)

    def _leave(self, sock: socket.socket, session: Session | None) -> None:
        core = self._desk.core
        if session is not None:
            with core.changed:
                core.manager.client_gone(session.client, core.now())
                core.dispatch()
        sock.close()
        with self._lock:
            self._open.pop(sock, None)
            self._strangers.pop(sock, None)
