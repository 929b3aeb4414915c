"""The kept connection: reuse, replacement, deadlines, and one line for every failure."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from loadgen.errors import AuthRefused, ServerError, ServerUnreachable, UsageError
from loadgen.server.connection import QueryConnection, ServerReply, refuse
from tests.loadgen.server.conftest import Answer, SmallServer


@pytest.fixture
def raw() -> Iterator[socket.socket]:
    """A listening socket without accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def answer_once(listening: socket.socket, data: bytes) -> threading.Thread:
    """Accept one connection, send `data`, close."""

    def serve() -> None:
        accepted, _ = listening.accept()
        with accepted:
            accepted.recv(65536)
            accepted.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_the_connection_is_kept_with_its_headers_and_prefix(server: SmallServer) -> None:
    server.routes["/a"] = Answer(body={"x": 1})
    connection = QueryConnection(server.url, [("Authorization", "Bearer k")])
    assert connection.get("/a", 60).json() == {"x": 1}
    assert connection.post("/a", {"y": 2}, 5).status == 200
    connection.close()
    assert server.connections == 1
    assert [(verb, body) for verb, _, _, body in server.seen] == [("GET", {}), ("POST", {"y": 2})]
    assert all(headers["authorization"] == "Bearer k" for _, _, headers, _ in server.seen)

    server.routes["/team/a/health"] = Answer()
    connection = QueryConnection(f"{server.url}/team/a/")
    assert connection.get("/health", 5).status == 200
    connection.close()


def test_what_is_no_json_is_none() -> None:
    bodies = (b"<html>", b'{"error": "caf\xe9"}', b"[" * 5000 + b"]" * 5000)
    assert [ServerReply(500, body).json() for body in bodies] == [None] * 3


def test_closed_connections_are_replaced(server: SmallServer) -> None:
    server.routes["/a"] = Answer(body=b"hello", close=True)
    connection = QueryConnection(server.url)
    for _ in range(3):
        assert connection.get("/a", 60).body == b"hello"
    connection.close()
    assert server.connections == 3

    server.routes["/a"] = Answer(body=b"x" * 100_000, headers={"connection": "close"})
    connection = QueryConnection(server.url)
    assert [len(connection.get("/a", 60).body) for _ in range(2)] == [100_000, 100_000]
    connection.close()
    assert server.connections == 3 + 2


def test_a_host_that_is_not_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerUnreachable, match=f"nothing listens at {url}"):
        QueryConnection(url).get("/", 60)
    with pytest.raises(ServerUnreachable, match="cannot find the host"):
        QueryConnection("http://no-such-host.invalid:1").get("/", 60)
    with pytest.raises(ServerUnreachable, match="cannot find the host"):
        QueryConnection(f"http://{'a' * 70}.invalid").get("/", 60)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a", "http://", "http://[::1", "http://a:99999"])
def test_no_address(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        QueryConnection(url)


def test_answers_that_never_come(raw: socket.socket, server: SmallServer) -> None:
    started = time.monotonic()
    with pytest.raises(ServerUnreachable, match=r"no answer from .* within 0\.2 s"):
        QueryConnection(url_of(raw)).get("/", 0.2)
    assert time.monotonic() - started < 30

    server.routes["/slow"] = Answer(body=b"x" * 400, drip_s=0.05)  # 20 s in all, each byte well in time
    started = time.monotonic()
    with pytest.raises(ServerUnreachable, match="no answer"):
        QueryConnection(server.url).get("/slow", 0.4)
    assert time.monotonic() - started < 10


def test_answers_that_never_end(server: SmallServer) -> None:
    server.routes["/a"] = Answer(body=b"half", cut=True)
    with pytest.raises(ServerUnreachable, match="in the middle of its answer"):
        QueryConnection(server.url).get("/a", 60)
    server.routes["/a"] = Answer(body=b"x" * 5000)
    with pytest.raises(ServerUnreachable, match="larger than"):
        QueryConnection(server.url, largest_bytes=1000).get("/a", 60)


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"), (b"", "closed the connection without an answer")],
)
def test_something_else_listens(raw: socket.socket, data: bytes, says: str) -> None:
    thread = answer_once(raw, data)
    with pytest.raises(ServerUnreachable, match=says):
        QueryConnection(url_of(raw)).get("/", 60)
    thread.join()


def test_tls_where_there_is_none(raw: socket.socket) -> None:
    thread = answer_once(raw, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ServerUnreachable, match="does not speak TLS"):
        QueryConnection(url_of(raw).replace("http://", "https://")).get("/", 60)
    thread.join()


@pytest.mark.parametrize(
    ("reply", "error", "says"),
    [
        (
            ServerReply(401, b'{"error": "Unauthorized"}'),
            AuthRefused,
            r"401 \(Unauthorized\): give the right --api-key",
        ),
        (ServerReply(403, b""), AuthRefused, "403: give"),
        (
            ServerReply(503, b'{"error": {"message": "loading\\n\\u001b[31mred"}}'),
            ServerUnreachable,
            r"503 \(loading \[31mred",
        ),
        (ServerReply(308, b"", "https://b/v1"), ServerError, "points to https://b/v1"),
        (ServerReply(418, b"[]"), ServerError, "answers 418: is it"),
    ],
)
def test_answers_of_no_use_become_one_line(reply: ServerReply, error: type[ServerError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        refuse(QueryConnection("http://a"), "/v1/models", reply)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is error
