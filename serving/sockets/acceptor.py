"""Accepts connections on a thread, and serves each on its own thread: a bounded number, unproved clients separately.

A stranger is a client that has not proved the secret yet. If there are too many, the oldest is closed, so that clients
that know the secret can always connect; these are refused only at the limit of proved connections.
"""

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator

from serving.config.cluster import ANY_PORT, PORT_RANGE_KEY, PortRange
from serving.errors import ConfigError

logger = logging.getLogger(__name__)

MOST_STRANGERS = 64
_BACKLOG = 128
_REFUSAL_S = 0.1


class Acceptor:
    """Threads of one server.

    Args:
        name: of its threads.
        limit: connections that have proved the secret.
        serve: serves one connection to its end, on its own thread; closes the socket.
        on_closed_stranger: called when a stranger is closed in favour of another.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        serve: Callable[[socket.socket], None],
        on_closed_stranger: Callable[[], object] = lambda: None,
    ) -> None:
        self._name = name
        self._limit = limit
        self._serve = serve
        self._on_closed_stranger = on_closed_stranger
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._used: dict[socket.socket, socket.socket] = {}
        """By accepted socket, the socket used in its place (TLS)."""
        self._strangers: dict[socket.socket, None] = {}
        """Oldest first, without those that were closed in favour of another, whose threads may still run."""
        self._proved: set[socket.socket] = set()
        self._listeners: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ports = ANY_PORT
        self._stopping = False
        self.address = ("", 0)
        """Address to connect to; ("", 0) before `start`."""

    @property
    def count(self) -> int:
        """Open connections, including strangers."""
        return len(self._open)

    @property
    def proved(self) -> int:
        """Open connections whose clients have proved the secret."""
        return len(self._proved)

    @property
    def deaf(self) -> bool:
        """Whether an accepting thread has died, although `stop` was not called."""
        return not self._stopping and any(not thread.is_alive() for thread in self._threads)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    def start(self, host: str, ports: PortRange = ANY_PORT) -> tuple[str, int]:
        """Listen on `host`.

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
        if not self._stopping and host != self.address[0]:
            self._listen(host, self.address[1])

    def stop(self, timeout_s: float) -> None:
        """Close every connection, and wait for its thread."""
        self._stopping = True
        end = time.monotonic() + timeout_s
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
            listener.close()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._lock:
            left = dict(self._open)
            for sock in left:
                self._shut(sock)
        for thread in left.values():
            thread.join(max(0.0, end - time.monotonic()))

    @contextlib.contextmanager
    def watched(self, accepted: socket.socket, used: socket.socket) -> Iterator[None]:
        """Close `used` when `accepted` must be closed: TLS replaces the accepted socket by another."""
        with self._lock:
            self._used[accepted] = used
        try:
            yield
        finally:
            with self._lock:
                self._used.pop(accepted, None)

    def accepted(self, sock: socket.socket) -> bool:
        """Note that the client of this connection has proved the secret. Returns: whether it is within the limit."""
        with self._lock:
            if len(self._proved) >= self._limit:
                return False
            self._strangers.pop(sock, None)
            self._proved.add(sock)
            return True

    def _listen(self, host: str, wish: int) -> None:
        listener = listen(host, self._ports, _BACKLOG, wish)
        bound = listener.getsockname()
        self._listeners.append(listener)
        self.address = (str(bound[0]), int(bound[1]))
        thread = threading.Thread(
            target=self._accept_forever, args=(listener,), name=f"{self._name}-accept", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _accept_forever(self, listener: socket.socket) -> None:
        while not self._stopping:
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if not self._stopping:
                    logger.warning("cannot accept a connection (%s); raise the limit of open files", error)
                    time.sleep(_REFUSAL_S)
                continue
            thread = threading.Thread(target=self._run, args=(sock,), name=f"{self._name}-client", daemon=True)
            with self._lock:
                while len(self._strangers) >= MOST_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    self._shut(oldest)
                    self._on_closed_stranger()
                self._open[sock] = thread
                self._strangers[sock] = None
            try:
                thread.start()
            except RuntimeError:  # no more threads available
                self._forget(sock)
                sock.close()

    def _run(self, sock: socket.socket) -> None:
        try:
            self._serve(sock)
        finally:
            self._forget(sock)
            sock.close()

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._open.pop(sock, None)
            self._strangers.pop(sock, None)
            self._proved.discard(sock)

    def _shut(self, sock: socket.socket) -> None:
        """Shut a connection down; its own thread then ends. The caller holds the lock."""
        with contextlib.suppress(OSError):
            self._used.get(sock, sock).shutdown(socket.SHUT_RDWR)


# Listening sockets: at any free port, or within `[cluster] port_range`.


def listen(host: str, ports: PortRange = ANY_PORT, backlog: int = 128, wish: int = 0) -> socket.socket:
    """A socket listening on `host`.

    Args:
        wish: port to try first, if it is allowed; 0 = none.
    Raises: ConfigError if every port of the range is in use; OSError if the host cannot be bound.
    """
    allowed = [0] if ports == ANY_PORT else [*range(ports.first, ports.last + 1)]
    if wish and (wish in allowed or ports == ANY_PORT):
        allowed.insert(0, wish)
    for port in allowed:
        try:
            return socket.create_server((host, port), backlog=backlog)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    raise ConfigError(
        f"every port of {PORT_RANGE_KEY} {ports.first}-{ports.last} on {host} is taken: widen it, or stop what "
        "listens there"
    )
