"""The exchange of a one-time pass for the cookie that Ray's own login sets.

The pass is in the URL's fragment (after `#`), which browsers do not send, because Ray logs the first line of each
request including the query. The page reads the pass from the URL, sends it once as a header, and clears the fragment.
"""

import time
from collections.abc import Callable, Mapping

from aiohttp import web
from ray._private.authentication import authentication_constants as ray_names

from serving.scaling.dashboard.answers import error_answer, json_answer
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
