"""Questions of the command line over HTTP: what is asked directly, and what is not HTTP at all."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from serving.cli import ask_again, http_question, main
from serving.cli.gateway_client import ask_gateway
from serving.cli.pools_client import PoolsClient
from serving.cli.status_table import fetch_status
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.deployments import launch
from serving.errors import SilentError, UnavailableError


class Answering(BaseHTTPRequestHandler):
    """Says yes to everything, and notes what it was asked."""

    asked: list[str]
    moved: dict[str, str]
    """Where it points instead, by path."""

    def do_GET(self) -> None:
        """As http.server has it."""
        self.asked.append(self.path)
        body = b'{"pools": []}'
        self.send_response(302 if self.path in self.moved else 200)
        if self.path in self.moved:
            self.send_header("Location", self.moved[self.path])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def url() -> Iterator[str]:
    """Somebody who answers on this machine."""
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
    """Somebody who answers one question with these bytes, whatever they are."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that sends everything through a proxy, as in many companies."""
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
    """Even where it does not listen on loopback."""
    monkeypatch.setattr(launch, "endpoint", lambda _: url)
    monkeypatch.setattr(http_question, "_is_here", lambda _: False)
    launch.wait_ready(ServeConfig(ModelConfig(Path("somewhere"))), Path("logs"), deadline_s=2.0)
    assert Answering.asked == ["/ready"]


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_what_is_no_gateway_is_told_in_one_line(said: bytes) -> None:
    with stranger(said) as url, pytest.raises(UnavailableError, match="no gateway at"):
        ask_gateway(url, "/cluster", None)
    with stranger(said) as url, pytest.raises(UnavailableError, match="no dashboard at"):
        PoolsClient(url, "token").state()


def pointing(to: str) -> bytes:
    """An answer that says: ask there."""
    return f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@pytest.mark.parametrize("here", [True, False])
def test_a_token_goes_to_no_other_server_although_an_answer_points_there(
    here: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_question, "_is_here", lambda _: here)
    with stranger(pointing(f"{url}/cluster")) as first, pytest.raises(UnavailableError, match=f"it points to {url}"):
        ask_gateway(first, "/cluster", "key")
    with stranger(pointing(f"{url}/api/pools")) as first, pytest.raises(UnavailableError, match=f"it points to {url}"):
        PoolsClient(first, "token").state()
    assert Answering.asked == []


def test_within_a_server_an_answer_may_point_elsewhere(url: str) -> None:
    Answering.moved = {"/old": "/cluster"}
    assert ask_gateway(url, "/old", "key") == {"pools": []}
    assert Answering.asked == ["/old", "/cluster"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:80/", "http://localhost:80"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("https://there/path/", "https://there/path"),
    ],
)
def test_an_address_as_people_type_it(typed: str, meant: str) -> None:
    assert http_question.server_address(typed) == meant


@pytest.mark.parametrize(
    "typed", ["", ":8000", "ftp://there", "there:80a0", "there:99999", "http://[::1", "a b", "a?b"]
)
def test_an_address_that_names_no_server_is_a_usage_error(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["status", "--url"],
        ["pool", "--url"],
        ["scale", "decode", "2", "--dashboard"],
        ["chaos", "--url"],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*command, typed])
        assert ended.value.code == 2
        assert "is no address; write e.g. 127.0.0.1:8000" in capsys.readouterr().err


def test_a_late_answer_is_no_absence() -> None:
    """Connections are accepted and nothing comes: the machine is loaded, and the question may be repeated."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(SilentError, match=r"the gateway at .* does not answer within 0\.05 s"):
            ask_gateway(url, "/cluster", None, deadline_s=0.05)


def test_a_command_waits_for_a_busy_system_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ask_again, "PAUSE_S", 0.0)
    answers: Iterator[object] = iter((SilentError("it is busy"), SilentError("it is busy"), {"pools": []}))

    def ask(*_: object) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("serving.cli.status_table.ask_gateway", ask)
    assert fetch_status("http://there", None) == {"pools": []}
    assert capsys.readouterr().err == "cloudmatrix: it is busy; waiting for up to 60 s\n"


def test_an_address_that_is_none() -> None:
    for address in ("http://127.0.0.1:80a0", "127.0.0.1:8000", "http://[::1", ""):
        with pytest.raises(UnavailableError, match="no gateway at"):
            ask_gateway(address, "/cluster", None)
