"""The exchange of a one-time pass for the cookie that Ray's own login sets.

The pass is in the URL's fragment (after `#`), which browsers do not send, because Ray logs the first line of each
request including the query. The page reads the pass from the URL, sends it once as a header, and clears the fragment.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import ModuleType

from aiohttp import web
from ray._private.authentication import authentication_constants as ray_names
from ray._private.authentication import http_token_authentication

from serving.scaling.dashboard.answers import error_answer, json_answer, page_files
from serving.scaling.dashboard.once import LIFE_S, OncePasses

LOGIN_PATH = "/pools/login"
PASS_HEADER = "X-Pools-Once"
_SPENT = f"This address was used before, or is older than {LIFE_S / 60:.0f} minutes."


class PageLogin:
    """Sets Ray's cookie in response to a valid pass.

    Args:
        token: Ray's; empty = Ray requires no token, and there is no login.
        clock: seconds since 1970.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._token = token
        self._clock = clock
        self._passes = OncePasses(token, clock())

    def answer(self, headers: Mapping[str, str]) -> web.Response:
        """Response 200 with the cookie, which uses up the pass, or 403.

        Args:
            headers: of a request of the page itself, by case-insensitive name.
        """
        if not self._token or not self._passes.admit(headers.get(PASS_HEADER, ""), self._clock()):
            return error_answer("spent", _SPENT, 403)
        answer = json_answer({"message": "logged in"})
        answer.set_cookie(  # as `HttpServerDashboardHead.authenticate` does
            ray_names.AUTHENTICATION_TOKEN_COOKIE_NAME,
            self._token,
            max_age=ray_names.AUTHENTICATION_TOKEN_COOKIE_MAX_AGE,
            path="/",
            httponly=True,
            samesite="Strict",
        )
        return answer


# Makes the files of the pages public, but not their data.
#
# Ray's middleware responds with a plain-text 401 to requests without its token, before they reach any module; the list
# of public paths is hard-coded in `HttpServerDashboardHead.run`. A login form at `/pools` needs a wrapper around the
# function that creates the middleware. It extends this list by the page, its style and scripts, which contain no
# secrets, and the exchange of a one-time pass. `/api/pools`, `/api/experts` and all paths below them need the token.

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
