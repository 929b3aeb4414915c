"""A page whose DNS name was rebound to this server gets no data; requests by a name of this server are served."""

import asyncio
import socket

import pytest
from fastapi import FastAPI

from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.sockets.host_names import AllowedHosts, in_header, is_loopback
from tests.gateway.api.support import Harness, request

LOOPBACK = AllowedHosts(("127.0.0.1",), any_address=False)
OWN_NAME = {"host": "localhost:8000"}
EVERYWHERE = AllowedHosts(("0.0.0.0", "llm.example.com", "*.pool.example", in_header("fd00::1")), any_address=True)
OWN = (
    "localhost", "LOCALHOST:8000", "localhost.", "a.localhost:1", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "[::1]",
)  # fmt: skip
EVIL = (
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:8000",
    "127.0.0.1@evil.example", "evil.example:127.0.0.1", "evil.example#localhost", "evillocalhost", "localhost:80:80",
    "::1", "", ":8000", "löcalhost",
)  # fmt: skip


def test_loopback_is_always_this_server_and_another_name_is_not() -> None:
    for host in (*OWN, f"{socket.gethostname()}:8000"):
        assert LOOPBACK.allow(host), host
    assert all(EVERYWHERE.allow(host) for host in OWN)
    for host in EVIL:
        assert not LOOPBACK.allow(host), host
        assert not EVERYWHERE.allow(host), host
    assert AllowedHosts(("*",), any_address=False).allow("evil.example"), "a star is any"


@pytest.mark.parametrize(
    "host",
    ["192.168.7.5:8000", "[fd00::1]:8000", "[fe80::2]", "llm.example.com", "a.pool.example:1", "Llm.Example.Com."],
)
def test_what_listens_for_others_has_more_names(host: str) -> None:
    """An address cannot be rebound, and behind a forwarded port it may be any address."""
    assert EVERYWHERE.allow(host)
    assert not LOOPBACK.allow(host)


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_who_listens_on_loopback_alone(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


@pytest.fixture(scope="module")
def app(served: ServedModel) -> FastAPI:
    return Harness(served, ApiSettings(hosts=LOOPBACK)).app


@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/metrics", "/health", "/pool", "/nothing"])
def test_the_refusal_says_which_key_to_set(app: FastAPI, path: str) -> None:
    reply = request(app, "GET", path, headers={"host": "evil.example:8000"})
    assert reply.status_code == 403
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "host_not_allowed")
    assert "[gateway] allowed_hosts" in error["message"]
    assert "evil.example" in error["message"]
    assert reply.headers["x-request-id"]
    assert request(app, "GET", path, headers=OWN_NAME).status_code != 403


def test_a_second_host_header_is_no_way_in(app: FastAPI) -> None:
    seen: list[int] = []

    async def ask(hosts: list[bytes]) -> None:
        headers = [(b"host", host) for host in hosts]
        scope = {"type": "http", "method": "GET", "path": "/version", "headers": headers, "query_string": b""}

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                seen.append(int(str(message["status"])))

        await app(scope, receive, send)  # type: ignore[arg-type] # plain dictionaries, as servers pass

    for hosts in ([b"localhost", b"evil.example"], [b"evil.example", b"localhost"], [b"localhost"], []):
        asyncio.run(ask(hosts))
    assert seen == [403, 403, 200, 200]


def test_the_document_tells_of_the_refusal(app: FastAPI, harness: Harness) -> None:
    for one, checks in ((app, True), (harness.app, False)):
        paths = request(one, "GET", "/openapi.json", headers=OWN_NAME).json()["paths"]
        for path, method in (("/v1/chat/completions", "post"), ("/metrics", "get")):
            assert ("403" in paths[path][method]["responses"]) is checks
