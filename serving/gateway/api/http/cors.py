"""CORS: the origins whose web pages may call this server from a browser, if the operator configured any.

Starlette's own middleware, outermost, so that a preflight, which never has a key, is handled before keys are checked,
and so that a page can read every response, errors and streams included. Cookies and other credentials that browsers
send automatically stay off: a page must know an API key and send it.
"""

import uuid

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.http.request_ids import usable_request_id

READABLE = ("x-request-id", "request-id", "x-cloudmatrix-warning", "retry-after", "x-should-retry", "www-authenticate")
"""Our headers that scripts may read; without this list browsers hide them."""
_METHODS = ("GET", "POST", "DELETE")
_PREFLIGHT_S = 600
"""Time for which a browser may cache the response to a preflight."""


def allow_origins(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Allow pages of `origins` to call (`*` = all). Without origins no layer is added. Must be the last layer added."""
    if origins:
        app.add_middleware(
            PageMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            allow_credentials=False,
            expose_headers=READABLE,
            max_age=_PREFLIGHT_S,
        )


def origin_headers(origins: tuple[str, ...], origin: str | None) -> dict[str, str]:
    """Headers that allow a page of `origin` to read a response which bypassed the application's layers."""
    if not origins:
        return {}
    readable = {"access-control-expose-headers": ", ".join(READABLE)}
    if "*" in origins:
        return {"access-control-allow-origin": "*", **readable}
    if origin not in origins:
        return {"vary": "Origin"}
    return {"access-control-allow-origin": origin, "vary": "Origin", **readable}


class PageMiddleware(CORSMiddleware):
    """Starlette's CORS, whose own responses have a request id, and errors in our format."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Respond to a preflight."""
        response = super().preflight_response(request_headers)
        if response.status_code != 200:
            text = f"{bytes(response.body).decode()}: see [gateway] allowed_origins"
            reply = ErrorReply(response.status_code, text, "invalid_request_error", None, "cors_not_allowed")
            kept = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
            response = Response(reply.body(), reply.status, kept, media_type="application/json")
        own_id = usable_request_id(request_headers.get("x-request-id"))
        response.headers["x-request-id"] = own_id or f"req-{uuid.uuid4().hex}"
        return response
