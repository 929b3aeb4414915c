"""API keys: a pure ASGI middleware that lets requests with a known bearer key pass.

Only digests are held. Every digest is compared, each in constant time, so that neither the key nor its place in the
list shows in the response time. Pure ASGI because Starlette's BaseHTTPMiddleware hides disconnects from the routes.
"""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.errors import reply_for
from serving.api.responses import send_error
from serving.api.settings import hash_api_key
from serving.errors import AuthenticationError

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version", "/ping"})
"""Probes, scrapers and load balancers carry no keys."""


def check_authorization(header: str | None, key_hashes: tuple[bytes, ...]) -> None:
    """Accept `Bearer <key>` with a key whose digest is known.

    Raises: AuthenticationError.
    """
    scheme, _, key = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise AuthenticationError("no API key was given; send it as 'Authorization: Bearer <key>'")
    digest = hash_api_key(key.strip())
    if not any([hmac.compare_digest(digest, known) for known in key_hashes]):  # a list: no early exit
        raise AuthenticationError("the API key is not known to this server; check the key")


class ApiKeyMiddleware:
    """Answers 401 to requests without a valid key, outside `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, key_hashes: tuple[bytes, ...]) -> None:
        self._app = app
        self._key_hashes = key_hashes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check HTTP requests; everything else passes."""
        if scope["type"] == "http" and self._key_hashes and scope["path"] not in OPEN_PATHS:
            header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            try:
                check_authorization(None if header is None else header.decode("latin-1"), self._key_hashes)
            except AuthenticationError as error:
                await send_error(send, reply_for(error))
                return
        await self._app(scope, receive, send)
