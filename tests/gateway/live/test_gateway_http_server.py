"""A draining HTTP server: closed for new connections at once, open for streams until they finish, within a limit."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from serving.gateway.live.connections import ConnectionLimits
from serving.gateway.live.gateway_http_server import GatewayHttpServer
from tests.e2e.server import PATIENCE_S, free_port

pytestmark = pytest.mark.asyncio


class Streaming:
    """An ASGI application whose response continues until it is released."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def __call__(self, scope: dict[str, object], receive: object, send: object) -> None:
        assert callable(send)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        await self.end.wait()
        await send({"type": "http.response.body", "body": b"ended"})


class Client:
    """One connection with a request whose response has started."""

    async def begin(self, port: int) -> None:
        while True:
            try:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        self.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        self.answer = await self.reader.readuntil(b"begun\r\n")

    async def finish(self) -> bytes:
        self.answer += await self.reader.read()
        self.writer.close()
        return self.answer


async def refused(port: int) -> None:
    """Wait until the port refuses connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        writer.close()
        await asyncio.sleep(0.01)


async def test_streams_end_and_newcomers_are_refused() -> None:
    app, client, port = Streaming(), Client(), free_port()
    door = GatewayHttpServer(app, "127.0.0.1", port, leave_s=PATIENCE_S)
    serving = asyncio.create_task(door.serve())
    await client.begin(port)
    leaving = asyncio.create_task(door.leave())
    await asyncio.wait_for(refused(port), PATIENCE_S)
    assert not leaving.done()
    app.end.set()
    assert b"ended" in await client.finish()
    await asyncio.wait_for(leaving, PATIENCE_S)
    await serving


async def test_a_stream_without_an_end_is_cut() -> None:
    client, port = Client(), free_port()
    door = GatewayHttpServer(Streaming(), "127.0.0.1", port, leave_s=0.1)
    serving = asyncio.create_task(door.serve())
    await client.begin(port)
    await asyncio.wait_for(door.leave(), PATIENCE_S)
    await serving
    assert b"ended" not in await client.finish()


async def test_leaving_before_it_listens() -> None:
    port = free_port()
    door = GatewayHttpServer(Streaming(), "127.0.0.1", port, leave_s=PATIENCE_S)
    serving = asyncio.create_task(door.serve())
    await asyncio.wait_for(door.leave(), PATIENCE_S)
    await serving
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def answer_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """One request, and its response up to the end of the body."""
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    return await asyncio.wait_for(reader.readuntil(b"ended\r\n0\r\n\r\n"), PATIENCE_S)


@contextlib.asynccontextmanager
async def open_door() -> AsyncIterator[tuple[GatewayHttpServer, int]]:
    """A server that accepts connections, and its port. The block makes it drain."""
    app, port = Streaming(), free_port()
    app.end.set()
    door = GatewayHttpServer(app, "127.0.0.1", port, leave_s=PATIENCE_S)
    serving = asyncio.create_task(door.serve())
    await door.opened()
    yield door, port
    await serving


async def test_a_kept_connection_is_answered_once_more_while_the_door_leaves() -> None:
    async with open_door() as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert b"connection: close" not in await answer_on(reader, writer)
        leaving = asyncio.create_task(door.leave(idle_s=PATIENCE_S))
        await asyncio.wait_for(refused(port), PATIENCE_S)
        assert b"connection: close" in await answer_on(reader, writer)
        assert await reader.read() == b"", "the connection ends behind its last answer"
        await asyncio.wait_for(leaving, PATIENCE_S)
        writer.close()


async def test_who_has_connected_is_served_although_nobody_had_accepted_yet() -> None:
    async with open_door() as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await answer_on(reader, writer)  # by now the server accepts
        # The loop, which would accept, does not run in between.
        early = socket.create_connection(("127.0.0.1", port))
        leaving = asyncio.create_task(door.leave(idle_s=PATIENCE_S))
        writer.close()
        early.setblocking(False)
        early_reader, early_writer = await asyncio.open_connection(sock=early)
        assert b"connection: close" in await answer_on(early_reader, early_writer)
        early_writer.close()
        await asyncio.wait_for(leaving, PATIENCE_S)


async def test_two_doors_share_a_port() -> None:
    app, port = Streaming(), free_port()
    app.end.set()
    doors = [GatewayHttpServer(app, "127.0.0.1", port, leave_s=PATIENCE_S) for _ in range(2)]
    serving = [asyncio.create_task(door.serve()) for door in doors]
    for door in doors:
        await door.opened()
    await asyncio.wait_for(doors[0].leave(), PATIENCE_S)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await answer_on(reader, writer)
    writer.close()
    await asyncio.wait_for(doors[1].leave(), PATIENCE_S)
    await asyncio.gather(*serving)


async def test_other_limits_hold_for_connections_that_are_there() -> None:
    async with open_door() as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert b"200 OK" in await answer_on(reader, writer)
        door.configure(ConnectionLimits(max_head_bytes=1024), PATIENCE_S)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nLong: " + b"x" * 2000 + b"\r\n\r\n")
        assert b" 431 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.close()
        await asyncio.wait_for(door.leave(), PATIENCE_S)
