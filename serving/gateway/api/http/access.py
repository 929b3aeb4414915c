"""The outermost ASGI layer: request ids, one observation per HTTP exchange, an error response for every bug."""

import asyncio
import logging
import re
import uuid
from contextlib import suppress
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.deadline import within
from serving.errors import UnavailableError
from serving.gateway.api.generation_response import reply_logged, send_error
from serving.gateway.api.http.errors import is_messages, reply_for, reply_on
from serving.gateway.api.http.request_ids import usable_request_id
from serving.gateway.api.unknown_fields import WARNING_HEADER, warning_text
from serving.telemetry.metrics import GatewayMetrics

log = logging.getLogger("serving.gateway.api")

MOST_LOGGED = 256
"""Names of ignored fields that are logged, each once; a client cannot fill the log with names of its own."""


class AccessMiddleware:
    """Count exchanges, and set `x-request-id` (the client's or a new one; below /v1/messages also `request-id`).

    The header takes precedence over the body's `request_id`. Ignored fields of the body are named in another header.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one exchange."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        own_id = usable_request_id(given.decode("latin-1"))
        new_id = f"req-{uuid.uuid4().hex}"
        state = scope.setdefault("state", {})
        state["exchange_id"] = own_id or new_id
        state["send_body"] = send  # further layers only change the start of a response
        status, answered = 499, False  # what proxies log for a client that left before the response
        started = self._metrics.clock()

        async def send_with_id(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                request_id = own_id or state.get("request_id") or new_id
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if is_messages(scope["path"]):  # the name that Anthropic's clients read
                    message["headers"].append((b"request-id", request_id.encode()))
                if ignored := state.get("ignored_fields"):
                    self._log_once(ignored)
                    message["headers"].append((WARNING_HEADER.encode(), warning_text(ignored).encode()))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if answered:
                raise  # aborting the response is all that can still be done
            reply = reply_logged(error, own_id or state.get("request_id") or new_id)
            await send_error(send_with_id, reply_on(scope, reply))
        finally:
            route = scope.get("route")
            handler = getattr(route, "path", "none")  # a raw path would make a series per typo
            self._metrics.http_request(scope["method"], handler, status, self._metrics.clock() - started)

    def _log_once(self, names: list[str]) -> None:
        """Log the names that were not logged before, without list indices."""
        for name in {re.sub(r"\[\d+\]", "[]", name) for name in names} - self._logged:
            if len(self._logged) >= MOST_LOGGED:
                return
            self._logged.add(name)
            log.warning("a request's field '%s' is ignored: this server does not support it", name)


class WithoutRequestId:
    """Application behind a proxy that sets `x-request-id` itself, from the id that it passed on in the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Remove the header; otherwise clients would receive it twice."""

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [one for one in message["headers"] if one[0].lower() != b"x-request-id"]
            await send(message)

        await self._app(scope, receive, send_without_id)


# Path prefix under which a proxy exposes this server: pure ASGI, outermost, so that other layers see paths without it.
#
# The proxy may or may not remove the prefix; both are supported.


class RootPathMiddleware:
    """Removes the prefix from paths that start with it.

    Args:
        root_path: such as `/llm`.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path
        self._raw = root_path.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass HTTP requests on without the prefix, other scopes unchanged."""
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root_path or path.startswith(f"{self._root_path}/"):
                raw = scope.get("raw_path", b"").removeprefix(self._raw) or b"/"
                scope = {**scope, "path": path[len(self._root_path) :] or "/", "raw_path": raw}
        await self._app(scope, receive, send)


# Draining of a gateway: refuse new requests immediately and let those in progress finish.

PROBES = frozenset({"/health", "/ping", "/version", "/metrics", "/load", "/cluster", "/experts"})
"""Paths served until the end, so that the drain can be observed; `/ready` and `/-/healthz` are not among them."""

RETRY_AFTER_S = 5.0
"""A replacement behind the same address takes seconds."""


class GatewayDrain:
    """Counts the exchanges of one gateway and stores whether it drains. Used from one event loop."""

    def __init__(self) -> None:
        self.begun = False
        self.busy = 0
        """Exchanges in progress, not counting probes."""
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Refuse all further requests. Idempotent."""
        self.begun = True

    def entered(self) -> None:
        """Count the start of an exchange."""
        self.busy += 1
        self._idle.clear()

    def left(self) -> None:
        """Count the end of an exchange."""
        self.busy -= 1
        if not self.busy:
            self._idle.set()

    async def idle(self, seconds: float) -> bool:
        """Wait until no exchange is in progress. Returns: whether that happened within `seconds`."""
        if self.busy:
            with suppress(TimeoutError):
                await within(self._idle.wait(), seconds)
        return not self.busy


class DrainMiddleware:
    """Passes and counts exchanges, or refuses them with 503 and closes their connection."""

    def __init__(self, app: ASGIApp, drain: GatewayDrain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one exchange."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        if self._drain.begun:
            error = UnavailableError(
                "this gateway is shutting down; send the request again", retry_after_s=RETRY_AFTER_S
            )
            reply = reply_on(scope, reply_for(error))
            await send_error(send, replace(reply, headers={**reply.headers, "connection": "close"}))
            return
        self._drain.entered()
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.left()
