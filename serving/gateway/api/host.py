"""Check of the `Host` header of every request against this server's names; pure ASGI, inside the access log's layer."""

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import PermissionDeniedError
from serving.gateway.api.error_dialects import reply_on
from serving.gateway.api.errors import reply_for
from serving.gateway.api.generation_response import send_error
from serving.host_names import AllowedHosts

_SHOWN = 100


class HostMiddleware:
    """Responds 403 to requests for another host. Requests without the header pass: every browser sends it."""

    def __init__(self, app: ASGIApp, allowed: AllowedHosts) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; pass other scopes unchecked."""
        if scope["type"] == "http":
            for name, value in scope["headers"]:  # all of them: a second one must not bypass the check
                if name == b"host" and not self._allowed.allow(host := value.decode("latin-1")):
                    await send_error(send, reply_on(scope, reply_for(_refusal(host))))
                    return
        await self._app(scope, receive, send)


def _refusal(host: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"the Host header says {host[:_SHOWN]!r}, which is not a name of this server: a web page may pose as it;"
        f" add the name to [gateway] allowed_hosts, or configure API keys",
        code="host_not_allowed",
    )
