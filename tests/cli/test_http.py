"""HTTP requests of the command line: which hosts are contacted directly, and responses that are not HTTP."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from loadgen.cli.main import main as loadgen
from loadgen.server_address import server_address
from serving.cli import main
from serving.cli.status_table import fetch_status
from serving.client import http_client
from serving.client.http_client import RefusedError, ask_again, ask_dashboard, ask_gateway
from serving.client.pools_client import PoolsClient
from serving.errors import SilentError, UnavailableError
from serving.launch import deploying


class Answering(BaseHTTPRequestHandler):
    """A handler that accepts every request and records it."""

    asked: list[str]
    moved: dict[str, str]
    """Where it points instead, by path."""

    def do_GET(self) -> None:
        """Handle a GET, for http.server."""
        self.asked.append(self.path)
        body = b'{"pools": []}'
        self.send_response(302 if self.path in self.moved else 200)
        if self.path in self.moved:
            self.send_header("Location", self.moved[self.path])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress log output."""


@pytest.fixture
def url() -> Iterator[str]:
    """A local server that responds."""
    Answering.asked, Answering.moved = [], {}
    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def stranger(said: bytes) -> Iterator[str]:
    """A server that answers one request with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):  # it may be left in the middle
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment with a proxy for all hosts, as in many companies."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("proxy")
def test_a_token_for_this_machine_goes_through_no_proxy(url: str) -> None:
    assert ask_gateway(url, "/cluster", "key") == {"pools": []}
    assert PoolsClient(url, "token").state() == {"pools": []}
    assert PoolsClient(url.replace("127.0.0.1", "localhost"), "token").state() == {"pools": []}


@pytest.mark.usefixtures("proxy")
def test_other_machines_are_asked_through_the_proxy() -> None:
    with pytest.raises(UnavailableError, match="Connection refused"):
        ask_gateway("http://gateway.invalid:8000", "/cluster", None)


@pytest.mark.usefixtures("proxy")
def test_a_start_asks_its_own_gateway_through_no_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the gateway does not listen on loopback."""
    monkeypatch.setattr(http_client, "_is_here", lambda _: False)
    assert deploying.is_ready(url)
    assert Answering.asked == ["/ready"]


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_what_is_no_gateway_is_told_in_one_line(said: bytes) -> None:
    with stranger(said) as url, pytest.raises(UnavailableError, match="no gateway at"):
        ask_gateway(url, "/cluster", None)
    with stranger(said) as url, pytest.raises(UnavailableError, match="no dashboard at"):
        PoolsClient(url, "token").state()


def pointing(to: str) -> bytes:
    """A response that redirects to another address."""
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize("here", [True, False])
def test_a_token_goes_to_no_other_server_although_an_answer_points_there(
    here: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "_is_here", lambda _: here)
    with stranger(pointing(f"{url}/cluster")) as first, pytest.raises(UnavailableError, match=f"it points to {url}"):
        ask_gateway(first, "/cluster", "key")
    with stranger(pointing(f"{url}/api/pools")) as first, pytest.raises(UnavailableError, match=f"it points to {url}"):
        PoolsClient(first, "token").state()
    assert Answering.asked == []


def test_within_a_server_an_answer_may_point_elsewhere(url: str) -> None:
    Answering.moved = {"/old": "/cluster"}
    assert ask_gateway(url, "/old", "key") == {"pools": []}
    assert Answering.asked == ["/old", "/cluster"]


def test_an_address_as_people_type_it() -> None:
    for typed, meant in (
        ("127.0.0.1:8000", "http://127.0.0.1:8000"), ("localhost:80/", "http://localhost:80"),
        ("[::1]:8000", "http://[::1]:8000"), ("https://there/path/", "https://there/path"),
        ("127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
    ):  # fmt: skip
        assert server_address(typed) == meant


@pytest.mark.parametrize(
    "typed", ["", ":8000", "ftp://there", "there:80a0", "there:99999", "http://[::1", "a b", "a?b", "bob:secret@there"]
)
def test_an_address_that_names_no_server_is_a_usage_error(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    for program, *command in (
        (main, "status", "--url"),
        (main, "pool", "--url"),
        (main, "scale", "decode", "2", "--dashboard"),
        (main, "chaos", "--url"),
        (loadgen, "run", "--url"),
    ):
        with pytest.raises(SystemExit) as ended:
            program([*command, typed])
        assert ended.value.code == 2
        told = "no user name or password" if "@" in typed else "is no address; write e.g. 127.0.0.1:8000"
        assert told in capsys.readouterr().err


def test_a_late_answer_is_no_absence() -> None:
    """Connections are accepted without a response: the machine is loaded, and the request may be retried."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(SilentError, match=r"the gateway at .* does not answer within 0\.05 s"):
            ask_gateway(url, "/cluster", None, deadline_s=0.05)


def test_a_command_waits_for_a_busy_system_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_client, "PAUSE_S", 0.0)
    answers: Iterator[object] = iter((SilentError("it is busy"), SilentError("it is busy"), {"pools": []}))

    def ask() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert ask_again(ask) == {"pools": []}
    assert capsys.readouterr().err == "cloudmatrix: it is busy; waiting for up to 60 s\n"


@pytest.mark.real_time
def test_status_asks_again_while_nothing_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first connection is accepted and never answered."""
    monkeypatch.setattr("serving.cli.status_table.ask_gateway", partial(ask_gateway, deadline_s=0.2))
    monkeypatch.setattr(http_client, "PAUSE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def answer() -> None:
            silent, _ = listening.accept()
            with silent, listening.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n{"model":""}')

        thread = threading.Thread(target=answer)
        thread.start()
        assert fetch_status(url, None) == {"model": ""}
        thread.join()
    assert capsys.readouterr().err.count("does not answer within 0.2 s; waiting for up to 60 s") == 1


def test_an_address_that_is_none_and_one_without_a_scheme(url: str) -> None:
    for address in ("http://127.0.0.1:80a0", "ftp://127.0.0.1:8000", "http://[::1", ""):
        with pytest.raises(UnavailableError, match="no gateway at"):
            ask_gateway(address, "/cluster", None)
    assert ask_gateway(url.removeprefix("http://"), "/cluster", None) == {"pools": []}


def refusing(status: int, body: str) -> bytes:
    """A response that refuses the request."""
    return f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("status", "body", "gateway", "dashboard"),
    [
        (401, '{"error": {"message": "who?"}}', "answered 401: give its key with --api-key", "not accept the token"),
        (403, "no", "answered 403: give its key with --api-key", "answered 403: it does not accept the token"),
        (403, '{"error": {"message": "not yours"}}', "answered 403: not yours", "answered 403: not yours"),
        (404, "nothing", "404: is that a CloudMatrix gateway?", "404: is that a CloudMatrix dashboard?"),
        (500, '{"error": 7}', "500: is that a CloudMatrix gateway?", "500: is that a CloudMatrix dashboard?"),
    ],
)
def test_refusals_say_what_to_do(status: int, body: str, gateway: str, dashboard: str) -> None:
    for ask, words in ((ask_gateway, gateway), (ask_dashboard, dashboard)):
        with stranger(refusing(status, body)) as url, pytest.raises(RefusedError) as caught:
            ask(url, "/cluster", "key")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_answer_that_is_no_object_is_no_answer() -> None:
    for body in ("[1]", "7", "null"):
        said = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        with stranger(said.encode()) as url, pytest.raises(UnavailableError, match=r"no gateway .* no JSON object"):
            ask_gateway(url, "/cluster", None)


def test_an_answer_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MOST_ANSWER_BYTES", 1 << 20)
    said = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b" " * (2 << 20)
    with stranger(said) as url, pytest.raises(UnavailableError, match="longer than 1 MiB"):
        ask_gateway(url, "/cluster", None)


def test_an_answer_that_never_ends_is_left_at_the_deadline() -> None:
    """Each piece arrives in time, the whole response does not."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                while not stop.wait(0.02):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(SilentError, match=r"does not answer within 0\.3 s"):
                ask_gateway(f"http://127.0.0.1:{listening.getsockname()[1]}", "/cluster", None, deadline_s=0.3)
        finally:
            stop.set()
            thread.join()
