"""The files of the pages are public, what they show is not.

Ray's middleware answers 401, in bare text, to whoever comes without its token, before any module is asked; the list of
paths that it lets through is written down inside `HttpServerDashboardHead.run`. A login form at `/pools` itself is
therefore had in one way only: the function that makes that middleware gets a longer list. What is let through are the
page, its style and scripts, which are in this repository for everybody to read, and the exchange of a one-time pass.
`/api/pools`, `/api/experts` and all below them stay behind the token.
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
    """The paths that need no token, each of them exactly."""
    return ("/pools", EXPERTS_PATH, LOGIN_PATH, *(f"/pools/{name}" for name in sorted(page_files())))


def let_through() -> None:
    """Have Ray's dashboard let the page's files through from its start on. To be called before its server runs.

    Effects: replaces a function of Ray's in this process, once.
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
    if server is not None:  # it has taken the function by its name already
        setattr(server, _MAKER, with_page)
