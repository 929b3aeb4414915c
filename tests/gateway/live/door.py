"""An HTTP server in front of a small application, and raw HTTP requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from serving.gateway.live.connections import ConnectionLimits
from serving.gateway.live.gateway_http_server import GatewayHttpServer
from tests.e2e.server import PATIENCE_S, free_port

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
FINISHED = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
LATE = ConnectionLimits(head_timeout_s=0.2, body_timeout_s=0.2)
POST = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Returns the length of the body; under /refuse 413 immediately, under /stream in pieces."""
    size, headers, status = 0, [], 200
    if scope["path"] == "/refuse":
        status, headers = 413, [(b"connection", b"close")]
    elif scope["path"] != "/early":
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
    body = f"read {size}".encode()
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (body, b"", b", in pieces"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})
        return
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def behind(limits: ConnectionLimits) -> AsyncIterator[int]:
    """An HTTP server with these limits for the block, at most a minute. Yields: its port."""
    port = free_port()
    door = GatewayHttpServer(app, "127.0.0.1", port, leave_s=0.1, limits=limits)
    serving = asyncio.create_task(door.serve())
    await door.opened()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield port
    finally:
        await door.leave()
        await serving


async def answer_to(port: int, *pieces: bytes) -> bytes:
    """All bytes received until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def error(answer: bytes, status: int) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"connection: close" in head
    found: dict[str, Any] = json.loads(body)["error"]
    return found
