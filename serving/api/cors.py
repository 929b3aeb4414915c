"""Web pages of other origins: which of them may call this server from a browser, where the operator named any.

Starlette's own middleware does it, outermost, so that a preflight, which never carries a key, is answered before keys
are asked for, and so that a page can read every answer, errors and streams included. Cookies and other credentials that
browsers send by themselves stay off: a page must know an API key and send it.
"""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

READABLE = ("x-request-id", "x-cloudmatrix-warning", "retry-after", "x-should-retry", "www-authenticate")
"""Our headers that scripts may read; without this list browsers hide them."""
_METHODS = ("GET", "POST", "DELETE")
_PREFLIGHT_S = 600
"""How long a browser may keep the answer to a preflight."""


def allow_origins(app: FastAPI, origins: tuple[str, ...]) -> None:
    """Let pages of `origins` call (`*` = of any). Without origins nothing is added. Call it after all other layers."""
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            allow_credentials=False,
            expose_headers=READABLE,
            max_age=_PREFLIGHT_S,
        )
