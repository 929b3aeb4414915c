"""Web pages of other origins: which of them may call this server from a browser, where the operator named any.

Starlette's own middleware does it, outermost, so that a preflight, which never carries a key, is answered before keys
are asked for, and so that a page can read every answer, errors and streams included. Cookies and other credentials that
browsers send by themselves stay off: a page must know an API key and send it.
"""

import uuid

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from serving.gateway.api.errors import ErrorReply
from serving.gateway.api.request_ids import usable_request_id

READABLE = ("x-request-id", "request-id", "x-cloudmatrix-warning", "retry-after", "x-should-retry", "www-authenticate")
"""Our headers that scripts may read; without this list browsers hide them."""
_METHODS = ("GET", "POST", "DELETE")
_PREFLIGHT_S = 600
"""How long a browser may keep the answer to a preflight."""


def allow_origins(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Let pages of `origins` call (`*` = of any). Without origins nothing is added. Call it after all other layers."""
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
    """Headers that let a page of `origin` read an answer that no layer of the application has seen."""
    if not origins:
        return {}
    readable = {"access-control-expose-headers": ", ".join(READABLE)}
    if "*" in origins:
        return {"access-control-allow-origin": "*", **readable}
    if origin not in origins:
        return {"vary": "Origin"}
    return {"access-control-allow-origin": origin, "vary": "Origin", **readable}


class PageMiddleware(CORSMiddleware):
    """Starlette's, whose own answers have a request id as all others, and the form of our errors."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser that asks before it sends."""
        response = super().preflight_response(request_headers)
        if response.status_code != 200:
            text = f"{bytes(response.body).decode()}: see [gateway] allowed_origins"
            reply = ErrorReply(response.status_code, text, "invalid_request_error", None, "cors_not_allowed")
            kept = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
            response = Response(reply.body(), reply.status, kept, media_type="application/json")
        own_id = usable_request_id(request_headers.get("x-request-id"))
        response.headers["x-request-id"] = own_id or f"req-{uuid.uuid4().hex}"
        return response
