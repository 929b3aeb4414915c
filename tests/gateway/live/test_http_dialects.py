"""HTTP of all kinds of clients: responses of the server itself, old versions, offers of other protocols."""

import asyncio

import pytest

from serving.gateway.live.connections import FULL, PROBES, ConnectionLimits, headers_in, wire
from tests.e2e.server import PATIENCE_S
from tests.gateway.live.door import FINISHED, GET, LATE, POST, answer_to, behind, error

PAGE = b"https://chat.example.com"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
"""As Java's client sends it with every request."""
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n2\r\nfg\r\n0\r\n\r\n"
ASKED = b"X-Request-Id: mine\r\nOrigin: " + PAGE + b"\r\n"
REFUSED = {
    "431": b"GET / HTTP/1.1\r\n" + ASKED + b"X: " + b"a" * 70_000,
    "408 head": b"GET / HTTP/1.1\r\n" + ASKED + b"X: a",
    "408 body": b"POST / HTTP/1.1\r\n" + ASKED + b"Content-Length: 9\r\n\r\nb",
    "400 chunk": b"POST / HTTP/1.1\r\n" + ASKED + b"Transfer-Encoding: chunked\r\n\r\nnone\r\n",
    "400 url": b"GET http://[::1/x HTTP/1.1\r\n" + ASKED + b"\r\n",
    "400 tunnel": b"CONNECT x:80 HTTP/1.1\r\n" + ASKED + b"\r\n",
}


def headers_of(answer: bytes) -> list[tuple[str, str]]:
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]


def values(answer: bytes, name: str) -> list[str]:
    return [value for one, value in headers_of(answer) if one == name]


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize(("origins", "told"), [((), None), (("*",), "*"), ((PAGE.decode(),), PAGE.decode())])
@pytest.mark.asyncio
async def test_a_door_answers_with_id_and_for_pages(kind: str, origins: tuple[str, ...], told: str | None) -> None:
    late_s = 0.2 if kind.startswith("408") else PATIENCE_S
    limits = ConnectionLimits(head_timeout_s=late_s, body_timeout_s=late_s, allowed_origins=origins)
    async with behind(limits) as port:
        answer = await answer_to(port, REFUSED[kind])
        found = error(answer, int(kind[:3]))
        assert set(found) == {"message", "type", "param", "code"}
        assert values(answer, "content-type") == ["application/json"]
        assert values(answer, "x-request-id") == ["mine"]
        assert values(answer, "access-control-allow-origin") == ([told] if told else [])
        assert ("x-request-id" in " ".join(values(answer, "access-control-expose-headers"))) is bool(told)


@pytest.mark.asyncio
async def test_ids_and_origins_of_others_are_not_repeated() -> None:
    async with behind(ConnectionLimits(allowed_origins=(PAGE.decode(),))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n" + ASKED + b"\r\n")
        await reader.readuntil(b"read 0")
        writer.write(b"\x00garbage\r\n\r\n")
        answer = await reader.read()
        writer.close()
        error(answer, 400)
        assert len(values(answer, "x-request-id")) == 1
        assert values(answer, "x-request-id") != ["mine"]
    async with behind(ConnectionLimits(head_timeout_s=0.2, allowed_origins=(PAGE.decode(),))) as port:
        other = await answer_to(port, b"GET / HTTP/1.1\r\nOrigin: https://evil.example\r\nX-Request-Id: a\tb\r\nX: a")
        assert values(other, "access-control-allow-origin") == []
        assert values(other, "x-request-id")[0].startswith("req-")


@pytest.mark.asyncio
async def test_whoever_finds_no_place_is_told_so_on_a_page() -> None:
    async with behind(ConnectionLimits(max_connections=1, address_share=1.0, allowed_origins=(PAGE.decode(),))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readuntil(b"read 0")
        probes = [await asyncio.open_connection("127.0.0.1", port) for _ in range(PROBES // 2 + 1)]
        for _ in range(3):  # beyond all slots the request is read only if it arrived with the connection
            answer = await answer_to(port, b"GET / HTTP/1.1\r\n" + ASKED + b"\r\n")
            error(answer, 503)
            assert len(values(answer, "x-request-id")) == 1
        for _, one in probes:
            one.close()
        while b"mine" not in answer:  # one of the slots for probes is free now, and gets another request
            answer = await answer_to(port, b"GET / HTTP/1.1\r\n" + ASKED + b"\r\n")
            error(answer, 503)
        assert values(answer, "access-control-allow-origin") == [PAGE.decode()]
        writer.close()


def test_headers_of_a_request_that_nobody_parses() -> None:
    raw = b"GET / HTTP/1.1\r\nX-Origin: a\r\nORIGIN:  b \r\nx-request-id:c\r\nx-request-id: d\r\n\r\norigin: e"
    assert headers_in(raw) == [(b"origin", b"b"), (b"x-request-id", b"c"), (b"x-request-id", b"d")]
    assert values(wire(FULL, headers_in(raw), ("b",)), "x-request-id") == ["c"]
    assert values(wire(FULL, headers_in(raw), ("b",)), "access-control-allow-origin") == ["b"]
    assert values(wire(FULL, [], ("b",)), "vary") == ["Origin"]


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\n" + OFFER + b"Content-Length: 7\r\n\r\nabcdefg",
        b"POST / HTTP/1.1\r\nHost: x\r\n" + OFFER + CHUNKED,
        b"POST / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, upgrade\r\nUpgrade: websocket\r\n" + CHUNKED,
    ],
    ids=["length", "chunks", "websocket"],
)
@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.asyncio
async def test_an_offer_of_another_protocol_is_declined_and_the_body_read(request_: bytes, size: int) -> None:
    async with behind(ConnectionLimits()) as port:
        everything = request_ * 3 + FINISHED
        pieces = [everything[i : i + size] for i in range(0, len(everything), size)]
        answer = await answer_to(port, *pieces)
        assert answer.count(b"HTTP/1.1 200") == 4
        assert answer.count(b"read 7") == 3


@pytest.mark.asyncio
async def test_an_offer_may_ask_to_close_and_stays_bounded() -> None:
    async with behind(ConnectionLimits()) as port:
        close = OFFER.replace(b"Upgrade, ", b"Upgrade, close, ", 1)
        answer = await answer_to(port, b"POST / HTTP/1.1\r\n" + close + b"Content-Length: 2\r\n\r\nab" + FINISHED)
        assert answer.count(b"HTTP/1.1 200") == 1  # the connection has ended, and all was read
        assert answer.endswith(b"read 2")
        large = await answer_to(port, b"POST / HTTP/1.1\r\n" + OFFER + b"X: " + b"a" * 70_000 + b"\r\n\r\n")
        assert error(large, 431)["code"] == "headers_too_large"
    async with behind(LATE) as port:
        error(await answer_to(port, b"POST / HTTP/1.1\r\n" + OFFER + b"Content-Length: 2\r\n\r\na"), 408)


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n"])
@pytest.mark.asyncio
async def test_http_1_0_gets_no_chunks(more: bytes) -> None:
    async with behind(ConnectionLimits()) as port:
        answer = await answer_to(port, b"GET /stream HTTP/1.0\r\n" + more + b"\r\n")
        assert values(answer, "transfer-encoding") == []
        assert values(answer, "connection") == ["close"]
        assert answer.endswith(b"\r\n\r\nread 0, in pieces")
        answer = await answer_to(port, (POST % (b"", 2)).replace(b"1.1", b"1.0") + b"ab")
        assert values(answer, "content-length") == ["6"]
        assert answer.endswith(b"\r\n\r\nread 2")
        chunked = await answer_to(port, FINISHED.replace(b"/ ", b"/stream ", 1))
        assert values(chunked, "transfer-encoding") == ["chunked"]
