"""Guard of changes from a browser: only this page, opened by somebody who gave the token, may make any.

Ray's dashboard asks every request for its token, as a header or as a cookie that is SameSite=Strict, and answers 405 to
POST, PUT and DELETE of browsers. The page's own changes are therefore GETs, and a GET is what a foreign page can cause
most easily: SameSite does not tell ports apart, so a page of any other server on this machine is the same *site*. Hence
each change needs a nonce in a header of its own:

- the nonce comes with answers that only this origin's scripts can read (nothing here sends CORS headers),
- a header of one's own makes a foreign script's request one that the browser asks permission for first, in vain,
- links, images, forms and redirects cannot set headers at all.

`Sec-Fetch-Site`, or `Origin` and `Referer` where a browser does not send it, are looked at too: a leaked nonce is
not enough. All of them agree with a page whose own name was rebound to this server (DNS rebinding), so `Host` must be
this machine's name, loopback or an address; a name of its own for the dashboard needs Ray's token in a header. Without
Ray's token nothing can be changed from a browser.
"""

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from serving.host_names import AllowedHosts

NONCE_HEADER = "X-Pools-Nonce"


class Guard:
    """Tells this page's requests from others'.

    Args:
        controls: whether a browser may change anything: only where Ray asks for its token.
    """

    def __init__(self, *, controls: bool) -> None:
        self.controls = controls
        self.nonce = secrets.token_urlsafe(24)
        self._hosts = AllowedHosts(any_address=True)

    def objection(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Why a browser's change is not done.

        Args:
            headers: of the request, by case-insensitive name.
        Returns: the kind and the reason; None = it may be done. Kind `stale`: the page shall fetch a new nonce.
        """
        if not self.controls:
            return "read_only", "Ray's token authentication is off, so this page only shows. Scripts can POST."
        alien = self.stranger(headers)
        if alien is not None:
            return alien
        if not hmac.compare_digest(headers.get(NONCE_HEADER, "").encode(errors="surrogateescape"), self.nonce.encode()):
            return "stale", "This page is out of date; reload it."
        return None

    def stranger(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Why a request may not even look: a page of another origin sent it, or one that poses as this server.

        Args:
            headers: of the request, by case-insensitive name.
        Returns: the kind and the reason; None = it may.
        """
        if foreign(headers):
            return "foreign", "Only the page itself may ask for this."
        host = headers.get("Host")
        knows_token = self.controls and "Authorization" in headers  # Ray has checked it, and no page can know it
        if host is None or knows_token or self._hosts.allow(host):
            return None
        return "foreign", "The Host header is no name of this server: ask by this machine's name or an address."


def foreign(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that a request comes from another origin than it goes to."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")  # none: typed, or from a bookmark
    host = headers.get("Host", "").lower()
    sources = (headers.get("Origin"), headers.get("Referer"))
    return any(_host_of(source) != host for source in sources if source is not None)


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).netloc.lower()
    except ValueError:  # no address at all
        return ""
