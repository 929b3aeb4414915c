"""A raw ASGI driver with full control over the received bytes and the time of the disconnect."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

Message = dict[str, Any]


@dataclass
class Exchange:
    """One request in progress. `messages` has all messages that the application sent."""

    messages: list[Message] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.messages)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, at most a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the conditions look into objects that have no event
            await asyncio.sleep(0.001)


def start(
    app: FastAPI,
    path: str,
    body: bytes | dict[str, Any],
    *,
    chunks: int = 1,
    stop_at: int | None = None,
    headers: dict[str, str] | None = None,
    slow_send: Callable[[], Awaitable[object]] | None = None,
) -> tuple[Exchange, "asyncio.Task[None]"]:
    """Send a POST; the client stays connected until `exchange.gone` is set. `chunks` = 0 never sends the body.

    Args:
        stop_at: how many of the chunks are sent; None = all.
    """
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = -(-len(raw) // max(1, chunks))
    incoming = [
        {"type": "http.request", "body": raw[i * size : (i + 1) * size], "more_body": i < chunks - 1}
        for i in range(chunks)
    ][:stop_at]
    exchange = Exchange()

    async def receive() -> Message:
        if incoming:
            return incoming.pop(0)
        await exchange.gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if slow_send is not None:
            await slow_send()
        exchange.messages.append(dict(message))

    sent = {"content-type": "application/json", **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(k.encode(), v.encode()) for k, v in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    return exchange, asyncio.ensure_future(app(scope, receive, send))
