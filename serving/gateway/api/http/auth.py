"""API keys: a pure ASGI middleware that accepts requests with a known bearer key and records the key's tenant.

Only digests are stored. All are compared, each in constant time, so that the response time reveals neither the key nor
its place in the list. Pure ASGI because Starlette's BaseHTTPMiddleware hides disconnects from the routes.
"""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import AuthenticationError, PermissionDeniedError
from serving.gateway.api.generation_response import send_error
from serving.gateway.api.http.errors import RouteError, reply_for, reply_on
from serving.gateway.api.http.tenant import BACKGROUND_TENANT, KeyRing
from serving.sockets.host_names import AllowedHosts

OPEN_PATHS = frozenset({"/health", "/-/healthz", "/ready", "/metrics", "/version", "/ping"})
"""Probes, scrapers and load balancers send no keys. Metrics of tenants in `/metrics` are for administrators only."""
PAGES = frozenset({"/", "/docs"})
"""Pages for people. If a key is required, a browser is challenged for it; other clients get a 404."""
_CROSS_SITE = (b"cross-site", b"same-site")
_LOG_IN = Response(
    "This server requires an API key: enter it as the password, with any user name.\n",
    401,
    {"WWW-Authenticate": 'Basic realm="API key as the password", charset="UTF-8"', "Cache-Control": "no-store"},
    "text/plain",
)


class ApiKeyMiddleware:
    """Responds 401 to requests without a valid key, outside `OPEN_PATHS`, and 404 where they are for `PAGES`.

    A browser that requests a page is challenged for the key, and then sends it as a password with all requests of the
    page. A browser would also send it for pages of other sites, so cross-site passwords are ignored. Sets `tenant` in
    the request's state.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; pass other scopes unchecked."""
        if (own := scope.get(BACKGROUND_TENANT)) is not None:  # the server's own request, for a client that had a key
            scope.setdefault("state", {})["tenant"] = own
        elif scope["type"] == "http":
            headers = dict(reversed(scope["headers"]))  # the first one of a name counts
            raw = headers.get(b"authorization")
            if raw is not None and raw[:6].lower() == b"basic " and headers.get(b"sec-fetch-site") in _CROSS_SITE:
                raw = None
            if raw is None and (key := headers.get(b"x-api-key")) is not None:  # as Anthropic's clients send it
                raw = b"Bearer " + key
            header = None if raw is None else _text(raw)
            probe = scope["path"] in OPEN_PATHS or (scope["path"] == "/" and scope["method"] == "HEAD")
            look = self._keys.glance if probe else self._keys.identify
            try:
                scope.setdefault("state", {})["tenant"] = look(header)
            except AuthenticationError as error:
                if scope["path"] in PAGES and b"text/html" in headers.get(b"accept", b""):
                    await _LOG_IN(scope, receive, send)
                    return
                hidden = RouteError(404, f"no route for {scope['path']}") if scope["path"] in PAGES else error
                await send_error(send, reply_on(scope, reply_for(hidden)))
                return
        await self._app(scope, receive, send)


def _text(header: bytes) -> str:
    """Decode a header: most clients send non-ASCII letters as UTF-8, some as Latin-1, as older HTTP specified."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


# Check of the `Host` header of every request against this server's names; pure ASGI, inside the access log's layer.

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
