"""The outermost ASGI layer: request ids, one observation per HTTP exchange, an error response for every bug."""

import logging
import re
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.gateway.api.error_dialects import is_messages, reply_on
from serving.gateway.api.generation_response import reply_logged, send_error
from serving.gateway.api.request_ids import usable_request_id
from serving.gateway.api.unknown_fields import WARNING_HEADER, warning_text
from serving.telemetry.metrics import GatewayMetrics

log = logging.getLogger("serving.gateway.api")

MOST_LOGGED = 256
"""Names of ignored fields that are logged, each once; a client cannot fill the log with names of its own."""


class AccessMiddleware:
    """Set `x-request-id` on every response (the client's own or a new one; below /v1/messages also `request-id`) and
    count exchanges.

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
