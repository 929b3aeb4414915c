"""The whole HTTP surface over a scripted model, served on loopback to real agents; it keeps their requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tokenizers import Tokenizer

from serving.gateway.api.settings import ServedModel
from tests.agents import recording
from tests.agents.scripts import Asked
from tests.agents.scripts import Script as Session
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, running_server

MODEL = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"


def bundled_model(context: int = 131_072) -> ServedModel:
    """The bundled model's tokenizer and template, with any context."""
    return ServedModel.from_folder(MODEL, names=("storyteller",), max_model_len=context, created=7)


@cache
def _plain() -> Tokenizer:
    plain = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    plain.encode_special_tokens = True
    return plain


def text_tokens(text: str) -> list[int]:
    """Tokens of an output in which names of control tokens are text."""
    ids: list[int] = _plain().encode(text, add_special_tokens=False).ids
    return ids


@dataclass
class Exchange:
    """A request of an agent, and what it got."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int = 0
    warning: str = ""
    answer: bytes = b""
    said: str = ""


@dataclass
class ScriptedServer:
    """A running server.

    Args:
        exchanges: generating requests so far.
    """

    session: Session
    url: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    _agents: dict[str, str] = field(default_factory=dict)

    def agent_of(self, exchange: Exchange) -> str:
        """Name of the subagent that sent a request; empty for the main agent, which comes first."""
        headers = exchange.headers
        names = ("x-claude-code-agent-id", "thread-id", "x-session-id")
        own = next((headers[name] for name in names if name in headers), "")
        own = own or str(next(iter(_users(exchange.body)), ""))  # no name: by its first words
        if exchange.path == "/v1/messages":
            own = headers.get("x-claude-code-agent-id", "")
        return self._agents.setdefault(own, f"sub{len(self._agents)}" if self._agents else "")

    def requests(self) -> list[recording.Request]:
        """The session for a recording."""
        return [
            recording.Request(self.agent_of(one) or "main", one.path, one.headers, one.body, one.said, "")
            for one in self.exchanges
        ]


def _users(body: dict[str, Any]) -> Iterator[object]:
    """System prompt of a chat request."""
    yield from (one.get("content") for one in body.get("messages", ()) if one.get("role") == "system")


@contextlib.contextmanager
def scripted_server(session: Session, context: int = 131_072) -> Iterator[ScriptedServer]:
    """Serve a script."""
    server = ScriptedServer(session)
    current: ContextVar[Exchange] = ContextVar("exchange")
    model = bundled_model(context)
    harness = Harness(model)

    def script_of(spec: Any) -> Script:
        exchange = current.get()
        prompt = model.tokenizer.decode(spec.prompt, skip_special_tokens=False)
        exchange.said = session.reply(Asked(server.agent_of(exchange), prompt, exchange.body))
        ids = text_tokens(exchange.said)
        return Script((*ids, *model.eos_ids), per_update=8)

    harness.script_of = script_of

    def began(exchange: Exchange) -> None:
        server.exchanges.append(exchange)
        current.set(exchange)

    with running_server(_recorded(harness.app, began)) as server.url:  # type: ignore[arg-type]  # any ASGI application
        yield server


class Between(Protocol):
    """What stands between agent and server."""

    def change(self, path: str, body: dict[str, Any]) -> None:
        """Change a request in place."""

    def on_piece(self, body: dict[str, Any], piece: bytes) -> None:
        """A piece of the answer to a changed request was forwarded."""


@contextlib.contextmanager
def recording_proxy(url: str, between: Between) -> Iterator[ScriptedServer]:
    """Forward all requests to a running system."""
    server = ScriptedServer(Session((), ()))
    client = httpx.AsyncClient(base_url=url, timeout=300)

    async def forward(request: Request) -> StreamingResponse:
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = {key: value for key, value in request.headers.items() if key not in ("host", "accept-encoding")}
        content, body = await request.body(), {}
        if request.method == "POST":
            body = json.loads(content)
            await asyncio.to_thread(between.change, request.url.path, body)
            content = json.dumps(body).encode()
            headers.pop("content-length", None)
        sent = client.build_request(request.method, path, headers=headers, content=content)
        reply = await client.send(sent, stream=True)

        async def watched() -> AsyncIterator[bytes]:
            async for piece in reply.aiter_raw():
                yield piece
                between.on_piece(body, piece)

        kept = {key: value for key, value in reply.headers.items() if key not in ("transfer-encoding", "connection")}
        return StreamingResponse(watched(), reply.status_code, kept, background=BackgroundTask(reply.aclose))

    app = Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "HEAD"])])
    with running_server(_recorded(app, server.exchanges.append)) as server.url:  # type: ignore[arg-type]
        yield server


def _recorded(app: ASGIApp, began: Callable[[Exchange], None]) -> ASGIApp:
    """The application, whose POSTs are reported."""

    async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await app(scope, receive, send)
        message = await receive()
        whole: bytes = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            whole += message.get("body", b"")
        headers = {key.decode(): value.decode() for key, value in scope["headers"]}
        exchange = Exchange(scope["path"], headers, json.loads(whole))
        began(exchange)
        bodies: Iterator[Message] = iter([{"type": "http.request", "body": whole, "more_body": False}])

        async def once() -> Message:
            return next(bodies, None) or await receive()

        async def seen(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {key.decode(): value.decode() for key, value in message["headers"]}
                exchange.status, exchange.warning = message["status"], own.get("x-cloudmatrix-warning", "")
            else:
                exchange.answer += message.get("body", b"")
            await send(message)

        await app(scope, once, seen)

    return recorded
