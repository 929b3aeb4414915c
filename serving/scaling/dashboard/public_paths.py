"""Makes the files of the pages public, but not their data.

Ray's middleware responds with a plain-text 401 to requests without its token, before they reach any module; the list of
public paths is hard-coded in `HttpServerDashboardHead.run`. A login form at `/pools` needs a wrapper around the
function that creates the middleware. It extends this list by the page, its style and scripts, which contain no secrets,
and the exchange of a one-time pass. `/api/pools`, `/api/experts` and all paths below them need the token.
"""

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from types import ModuleType

from ray._private.authentication import http_token_authentication

from serving.scaling.dashboard.answers import page_files
from serving.scaling.dashboard.login import LOGIN_PATH

EXPERTS_PATH = "/experts"
_MAKER = "get_token_auth_middleware"
_SERVER = "ray.dashboard.http_server_head"


def public_paths() -> tuple[str, ...]:
    """Exact paths that need no token."""
    return ("/pools", EXPERTS_PATH, LOGIN_PATH, *(f"/pools/{name}" for name in sorted(page_files())))


def let_through() -> None:
    """Make Ray's dashboard serve `public_paths` without a token. Must be called before its server starts.

    Replaces a function of Ray's in this process, once.
    """
    make: Callable[..., object] = getattr(http_token_authentication, _MAKER)
    if hasattr(make, "__wrapped__"):
        return

    @wraps(make)
    def with_page(
        aiohttp: ModuleType, exact: Iterable[str] | None = None, prefixes: Iterable[str] | None = None
    ) -> object:
        return make(aiohttp, [*(exact or ()), *public_paths()], prefixes)

    setattr(http_token_authentication, _MAKER, with_page)
    server = sys.modules.get(_SERVER)
    if server is not None:  # it has already imported the function by name
        setattr(server, _MAKER, with_page)
