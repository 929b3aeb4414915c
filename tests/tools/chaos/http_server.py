"""A small scripted HTTP server, so that the client meets every failure of a server."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Handler = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(body: object) -> bytes:
    """One server-sent event."""
    return b"data: " + (body.encode() if isinstance(body, str) else json.dumps(body).encode()) + b"\n\n"


def token(token_id: int, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    """A piece with one token."""
    choice = {"index": index, "text": f"<{token_id}>", "token_ids": [token_id], "finish_reason": finish}
    return {"choices": [choice]}


async def play(order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """The correct response to an order: tokens 1, 2, 3 ..., streamed or whole."""
    count, choices = int(order["max_tokens"]), int(order.get("n", 1))
    pieces = [
        token(number, index=index, finish="length" if number == count else None)
        for number in range(1, count + 1)
        for index in range(choices)
    ]
    if order["stream"]:
        writer.write(STREAM)
        for piece in pieces:
            writer.write(chunk(event(piece)))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(chunk(event("[DONE]")) + chunk(b""))
    else:
        whole = [
            {"index": index, "text": "", "token_ids": list(range(1, count + 1)), "finish_reason": "length"}
            for index in range(choices)
        ]
        for one in whole:
            one["text"] = "".join(f"<{number}>" for number in range(1, count + 1))
        body = json.dumps({"choices": whole}).encode()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


@contextlib.asynccontextmanager
async def serving(handler: Handler = play) -> AsyncIterator[str]:
    """A server on a free port. Yields: its URL."""

    handling: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handling.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split()[0])
                await handler(json.loads(await reader.readexactly(length)), writer)
                await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            handling.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        while handling:
            await asyncio.wait(handling)
