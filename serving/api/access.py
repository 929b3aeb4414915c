"""The outermost layer, pure ASGI: request ids in and out, one observation per HTTP exchange, an answer to every bug."""

import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api.responses import reply_logged, send_error
from serving.telemetry.metrics import GatewayMetrics

MAX_REQUEST_ID = 128


def usable_request_id(value: str | None) -> str | None:
    """The client's id when it is safe to repeat in a header and a log: printable ASCII of moderate length."""
    if value and len(value) <= MAX_REQUEST_ID and value.isascii() and value.isprintable():
        return value
    return None


class AccessMiddleware:
    """Sets `x-request-id` on every response (the client's own, else a new one) and counts exchanges."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap one exchange."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = usable_request_id(given.decode("latin-1")) or f"req-{uuid.uuid4().hex}"
        header = (b"x-request-id", request_id.encode())
        status, answered = 499, False  # what proxies log for a client that left before an answer
        started = self._metrics.clock()

        async def send_with_id(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if answered:
                raise  # to cut the answer off is all that can still be done
            await send_error(send_with_id, reply_logged(error, request_id))
        finally:
            route = scope.get("route")
            handler = getattr(route, "path", "none")  # a raw path would make a series per typo
            self._metrics.http_request(scope["method"], handler, status, self._metrics.clock() - started)
