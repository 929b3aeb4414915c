"""The `Host` header of every request, held against the names that this server has; pure ASGI, within the access log."""

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import PermissionDeniedError
from serving.gateway.api.error_dialects import reply_on
from serving.gateway.api.errors import reply_for
from serving.gateway.api.generation_response import send_error
from serving.host_names import AllowedHosts

_SHOWN = 100


class HostMiddleware:
    """Answers 403 to requests for another host. Those without the header pass: every browser sends it."""

    def __init__(self, app: ASGIApp, allowed: AllowedHosts) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; everything else passes."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:  # all of them: a second one is no way in
                if name == b"host" and not self._allowed.allow(host := value.decode("latin-1")):
                    await send_error(send, reply_on(scope, reply_for(_refusal(host))))
                    return
        await self._app(scope, receive, send)


def _refusal(host: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"the Host header says {host[:_SHOWN]!r}, which is no name of this server, so a web page could be posing as it;"
        f" add the name to [gateway] allowed_hosts, or configure API keys",
        code="host_not_allowed",
    )
