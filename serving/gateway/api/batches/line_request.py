"""Lines of a batch as requests to this process's own HTTP application."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message

from serving.gateway.api.http.tenant import BACKGROUND_TENANT, Tenant


@dataclass(frozen=True, slots=True)
class LineReply:
    """The response to a line."""

    status: int
    body: bytes
    request_id: str
    retry_after_s: float = 0.0


async def ask_app(app: ASGIApp, tenant: Tenant, path: str, body: bytes, request_id: str) -> LineReply:
    """An application's response to a request of this process, which needs no key."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts = 500, list[bytes]()
    headers: dict[bytes, bytes] = {}

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # this client stays until it is cancelled
        raise AssertionError("never set")

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], dict(message["headers"])
        else:
            parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())],
        "client": None,
        "server": None,
        BACKGROUND_TENANT: tenant,
    }
    await app(scope, receive, send)
    after = headers.get(b"retry-after", b"0")
    return LineReply(status, b"".join(parts), request_id, float(after) if after.isdigit() else 0.0)
