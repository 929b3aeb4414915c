"""One link against scripted servers in this process: order of messages, and the fate of the connection."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from serving.errors import PoolError, PoolRefusedError, PoolTimeoutError, PoolUnreachableError, ProofError
from serving.ids import NodeId
from serving.kvpool.core import messages as m
from serving.kvpool.core import server_backoff
from serving.kvpool.live import frames
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.sockets.opening import accept_proved
from serving.sockets.proof import Verifier
from serving.sockets.secrets import ClusterSecrets
from serving.values.pool_view import ServerRecord, ServerState
from tests.kvpool.client_case import SOON_S, soon

pytestmark = pytest.mark.real_time

NODE = NodeId("n0")
Answer = Callable[[socket.socket, m.ToServer], m.Message | None]


class ScriptedServer:
    """Answers each request by `answer`: None = no response. Counts connections."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._socks: list[socket.socket] = []
        self.connections = 0
        self.asked: list[m.ToServer] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def link(self, name: str = "kv-0", secret: str = "s") -> ServerLink:
        """A link to the server."""
        host, port = self._listener.getsockname()
        record = ServerRecord(name, "i1", NODE, host, port, "/none", 1, 1, ServerState.ACTIVE, 0.0)
        return ServerLink(record, hello_of("test", NODE, secret))

    def stop_listening(self) -> None:
        """Refuse further connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def close(self) -> None:
        """Close all connections and the listener."""
        self.stop_listening()
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._socks.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(PoolError, OSError, ProofError):
            accept_proved(sock, Verifier(frames.POOL_CHANNEL, ClusterSecrets(("s",))), time.monotonic() + 60.0)
            sock.settimeout(None)
            while True:
                message, _ = frames.receive(sock, m.to_server)
                self.asked.append(message)
                answer = self._answer(sock, message)
                if answer is not None:
                    frames.send(sock, answer)


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[ScriptedServer]:
    """A scripted server for the duration of a `with`."""
    server = ScriptedServer(answer)
    try:
        yield server
    finally:
        server.close()


def welcome(name: str = "kv-0") -> m.Welcome:
    """A valid greeting."""
    return m.Welcome(name, "i1", NODE, "/none", 1, 7)


def polite(_: socket.socket, message: m.ToServer) -> m.Message | None:
    """Respond with a greeting, to Stats with Data, and to all other requests with Done."""
    if isinstance(message, m.Hello):
        return welcome()
    return m.Data({"n": 1}) if isinstance(message, m.Stats) else m.Done()


def test_ask_connects_once() -> None:
    with serving(polite) as server:
        link = server.link()
        assert (link.connection, link.local, link.welcome) == (0, False, None)
        for _ in range(3):
            assert link.ask(m.Data, m.Stats(), soon()).value == {"n": 1}
        assert (server.connections, link.connection, link.local) == (1, 1, True)
        link.close()
        assert link.ask(m.Data, m.Stats(), soon()).value == {"n": 1}
        assert link.connection == 2
        link.close()


def test_posted_answers_are_read_before_the_next_request() -> None:
    with serving(polite) as server:
        link = server.link()
        for _ in range(3):
            link.post(m.ReleaseLeases((1,)), soon())
        assert link.ask(m.Data, m.Stats(), soon()).value == {"n": 1}
        assert [type(message) for message in server.asked] == [m.Hello, *[m.ReleaseLeases] * 3, m.Stats]
        link.close()


def test_a_refusal_keeps_the_connection() -> None:
    def refusing(sock: socket.socket, message: m.ToServer) -> m.Message | None:
        return m.Failed("no such entry") if isinstance(message, m.Read) else polite(sock, message)

    with serving(refusing) as server:
        link = server.link()
        with pytest.raises(PoolRefusedError, match="no such entry"):
            link.read([(1, 0, 10)], [memoryview(bytearray(10))], soon())
        assert link.ask(m.Data, m.Stats(), soon()).value == {"n": 1}
        assert server.connections == 1
        link.close()


def test_a_late_answer_is_never_taken_for_anothers() -> None:
    def slow(sock: socket.socket, message: m.ToServer) -> m.Message | None:
        if isinstance(message, m.Stats):
            time.sleep(0.3)
        return polite(sock, message)

    with serving(slow) as server:
        link = server.link()
        with pytest.raises(PoolTimeoutError):
            link.ask(m.Data, m.Stats(), soon(0.1))
        assert link.welcome is None, "the connection is closed"
        with pytest.raises(PoolUnreachableError, match=r"skipped.*no complete frame"):
            link.ask(m.Done, m.ReleaseLeases(()), soon())
        time.sleep(0.4)
        assert after_greeting(link) == m.Done()
        assert server.connections == 2
        link.close()


def after_greeting(link: ServerLink) -> m.Done:
    """Send requests until the server has greeted again."""
    until = soon()
    while True:
        try:
            return link.ask(m.Done, m.ReleaseLeases(()), soon())
        except PoolUnreachableError:
            assert time.monotonic() < until
            time.sleep(0.005)


def test_nobody_waits_for_the_greeting_of_a_server_that_failed() -> None:
    greetings = []

    def slow(sock: socket.socket, message: m.ToServer) -> m.Message | None:
        if isinstance(message, m.Hello):
            greetings.append(message)
            time.sleep(0.2 * (len(greetings) - 1))
        return None if isinstance(message, m.Stats) else polite(sock, message)

    with serving(slow) as server:
        link = server.link()
        with pytest.raises(PoolTimeoutError):
            link.ask(m.Data, m.Stats(), soon(0.05))
        time.sleep(0.25)
        start = time.monotonic()
        for _ in range(3):
            with pytest.raises(PoolUnreachableError, match="not completed a handshake"):
                link.ask(m.Done, m.ReleaseLeases(()), soon())
        assert time.monotonic() - start < 0.1
        assert after_greeting(link) == m.Done()
        assert server.connections == 2
        link.close()


def test_a_caller_that_was_interrupted_between_question_and_answer() -> None:
    with serving(polite) as server:
        link = server.link()
        link.send(m.ReleaseLeases((1,)), soon())
        assert link.ask(m.Data, m.Stats(), soon()).value == {"n": 1}
        assert server.connections == 2, "the answer to the first is not waited for"
        link.close()


def test_an_answer_of_another_type_closes_the_connection() -> None:
    with serving(polite) as server:
        link = server.link()
        with pytest.raises(PoolError, match="Done where Looked"):
            link.ask(m.Looked, m.ReleaseLeases(()), soon())
        assert link.skipped(time.monotonic())
        link.close()


def test_pauses_double_up_to_their_limit() -> None:
    with serving(polite) as server:
        link = server.link()
    pauses = []
    for _ in range(7):
        link.backoff.retry_at = 0.0  # instead of waiting
        start = time.monotonic()
        with pytest.raises(PoolUnreachableError):
            link.prepare(soon())
        pauses.append(round(link.backoff.retry_at - start, 1))
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert link.skipped(time.monotonic())


def test_a_good_answer_ends_the_doubling() -> None:
    asked = []

    def sometimes(sock: socket.socket, message: m.ToServer) -> m.Message | None:
        asked.append(message)
        return None if isinstance(message, m.Stats) else polite(sock, message)

    with serving(sometimes) as server:
        link = server.link()
        for _ in range(2):
            link.ask(m.Done, m.ReleaseLeases(()), soon())
            with pytest.raises(PoolTimeoutError):
                link.ask(m.Data, m.Stats(), soon(0.05))
            assert link.backoff.pause_s == pytest.approx(0.2)
            time.sleep(0.25)
            after_greeting(link)
        link.close()


@pytest.mark.parametrize("greeting", [m.Failed("wrong secret"), welcome("kv-9"), m.Done()])
def test_a_server_that_does_not_take_us(greeting: m.Message) -> None:
    with serving(lambda _, __: greeting) as server:
        link = server.link()
        with pytest.raises(PoolUnreachableError, match="refused the connection"):
            link.ask(m.Done, m.ReleaseLeases(()), soon())
        assert link.skipped(time.monotonic())


def test_a_server_that_never_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_backoff, "CONNECT_S", 0.3)
    with serving(lambda _, __: None) as server:
        link = server.link()
        start = time.monotonic()
        with pytest.raises(PoolTimeoutError):
            link.ask(m.Done, m.ReleaseLeases(()), soon())
        assert time.monotonic() - start < SOON_S / 2, "a greeting is given less time than an answer"


def test_nonsense_closes_the_connection() -> None:
    def garbage(sock: socket.socket, message: m.ToServer) -> m.Message | None:
        if isinstance(message, m.Hello):
            return welcome()
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return None

    with serving(garbage) as server:
        link = server.link()
        with pytest.raises(PoolError):
            link.ask(m.Done, m.ReleaseLeases(()), soon(1.0))
        assert link.welcome is None


def test_without_time_nothing_is_begun() -> None:
    with serving(polite) as server:
        link = server.link()
        with pytest.raises(PoolTimeoutError, match="no time"):
            link.ask(m.Done, m.ReleaseLeases(()), soon(0.001))
        link.ask(m.Done, m.ReleaseLeases(()), soon())
        with pytest.raises(PoolTimeoutError, match="no time"):
            link.ask(m.Done, m.ReleaseLeases(()), soon(0.001))
        assert (link.connection, link.skipped(time.monotonic())) == (1, False)
        link.close()


def test_a_retired_link_stays_closed() -> None:
    with serving(polite) as server:
        link = server.link()
        link.ask(m.Done, m.ReleaseLeases(()), soon())
        link.retire()
        with pytest.raises(PoolUnreachableError, match="left the pool"):
            link.ask(m.Done, m.ReleaseLeases(()), soon())
        assert server.connections == 1
