"""Limits on clients of the HTTP server: too much, too slow, too often, never complete. Real sockets."""

import asyncio

import pytest

from serving.gateway.live.connections import (
    PROBES,
    ConnectionLimiter,
    ConnectionLimits,
    ConnectionSlot,
    address_of,
    connection_limit,
)
from tests.gateway.live.door import FINISHED, GET, LATE, POST, answer_to, behind, error


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000,
        b"GET /" + b"a" * 70_000,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 12_000,
        b"GET / HTTP/1.1\r\n" + b"a" * 70_000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
        GET + b"GET / HTTP/1.1\r\nX: " + b"a" * 600_000,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + b"a" * 700_000,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 700_000,
    ],
    ids=["value", "path", "many", "name", "whole", "second", "trailer", "extension"],
)
@pytest.mark.asyncio
async def test_a_head_that_is_too_large_is_431(head: bytes) -> None:
    async with behind(ConnectionLimits()) as port:
        answer = await answer_to(port, head)
        if head.startswith(GET):
            assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
            answer = answer[answer.index(b"HTTP/1.1", 1) :]
        assert error(answer, 431)["code"] == "headers_too_large"


@pytest.mark.asyncio
async def test_a_head_of_the_largest_size_and_a_long_body_pass() -> None:
    async with behind(ConnectionLimits()) as port:
        head = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 500000\r\nX: " + b"a" * 65_000 + b"\r\n\r\n"
        assert (await answer_to(port, head + b"b" * 500_000)).endswith(b"read 500000")
        chunks = b"".join(b"1\r\nc\r\n" for _ in range(100_000))
        chunked = b"POST / HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await answer_to(port, chunked + chunks + b"0\r\n\r\n")).endswith(b"read 100000")
        assert (await answer_to(port, GET * 500 + FINISHED)).count(b"read 0") == 501


@pytest.mark.parametrize("begun", [b"GET / HTTP/1.1\r\nX: a", b"G", b"\r\n", GET + b"GET / HT"])
@pytest.mark.asyncio
async def test_a_head_that_does_not_come_is_408(begun: bytes) -> None:
    async with behind(LATE) as port:
        answer = await answer_to(port, begun)
        error(answer[answer.rindex(b"HTTP/1.1") :], 408)
        assert await answer_to(port) == b"", "a connection without a request is closed"


@pytest.mark.parametrize(
    ("begun", "drop", "limits"),
    [(b"GET /", b"a", LATE), (POST % (b"", 100_000), b"b", ConnectionLimits(request_timeout_s=0.3))],
    ids=["head", "body"],
)
@pytest.mark.asyncio
async def test_what_drips_is_408(begun: bytes, drop: bytes, limits: ConnectionLimits) -> None:
    async with behind(limits) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(drop)
            await asyncio.sleep(0.02)
        error(await reading, 408)
        writer.close()


@pytest.mark.parametrize("body", [b"", b"some"])
@pytest.mark.asyncio
async def test_a_body_that_stands_still_is_408(body: bytes) -> None:
    async with behind(LATE) as port:
        assert error(await answer_to(port, POST % (b"", 100) + body), 408)["type"] == "timeout_error"


@pytest.mark.asyncio
async def test_a_refusal_reaches_whoever_goes_on_sending() -> None:
    """This much does not fit into the buffers of the two sockets: the client reads only after sending all of it."""
    async with behind(ConnectionLimits()) as port:
        size = 20 << 20
        answer = await answer_to(port, POST % (b"refuse", size), b"b" * size)
        assert answer.startswith(b"HTTP/1.1 413"), answer[:100]
        assert answer.endswith(b"read 0")
        size = 1 << 20
        answer = await answer_to(port, POST % (b"early", size), b"b" * size, FINISHED)
        assert answer.count(b"HTTP/1.1 200") == 2, "used again when the unread body has come"
        assert error(await answer_to(port, b"\x16\x03\x01\x00\xff nonsense\r\n\r\n"), 400)["code"] == "invalid_http"


@pytest.mark.asyncio
async def test_beyond_the_bound_only_probes_are_answered() -> None:
    async with behind(ConnectionLimits(max_connections=4, address_share=1.0)) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, writer in held:
            writer.write(GET)
            await reader.readuntil(b"read 0")
            writer.write(b"GET / HTTP/1.1\r\n")
        assert error(await answer_to(port, GET), 503)["code"] == "service_unavailable"
        assert b"read 0" in await answer_to(port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        error(await answer_to(port), 503)  # silent ones get a response soon, not after ten seconds
        probes = [await asyncio.open_connection("127.0.0.1", port) for _ in range(PROBES // 2)]
        error(await answer_to(port), 503)
        for _, writer in held + probes:
            writer.close()
        while not (await answer_to(port, FINISHED)).startswith(b"HTTP/1.1 200"):
            pass  # until the server has seen that they are closed


def test_places_are_shared_among_addresses() -> None:
    book = ConnectionLimiter(ConnectionLimits(max_connections=10, address_share=0.5), open_files=1024)
    assert [book.enter("a") for _ in range(6)] == [ConnectionSlot.ORDINARY] * 5 + [ConnectionSlot.PROBE]
    assert [book.enter("b") for _ in range(6)] == [ConnectionSlot.ORDINARY] * 5 + [ConnectionSlot.PROBE]
    assert book.enter("c") is ConnectionSlot.PROBE
    assert {book.enter("a") for _ in range(PROBES)} == {ConnectionSlot.PROBE, ConnectionSlot.NONE}
    assert book.enter("c") is ConnectionSlot.PROBE, "one address does not take all that is kept"
    book.leave("a", ConnectionSlot.ORDINARY)
    assert book.enter("c") is ConnectionSlot.ORDINARY


def test_the_bound_lies_below_the_limit_of_open_files() -> None:
    assert connection_limit(0, 20_000) == 17_500
    assert connection_limit(100_000, 1024) == 1024 - 2 * PROBES
    assert connection_limit(10, 1024) == 10
    assert connection_limit(0, 10) == 1


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1%eth0", "20010db800000000"),
        ("2001:db8::2", "20010db800000000"),
        (":", ":"),
    ],
)
def test_an_ipv6_network_counts_as_one(host: str, address: str) -> None:
    assert address_of(host) == address
