"""Guard of changes from a browser: only this page may make changes, after a login with Ray's token.

Ray's dashboard requires its token with every request, as a header or as a SameSite=Strict cookie, and responds with 405
to POST, PUT and DELETE from browsers. The page's own changes are therefore GETs, which a foreign page can trigger
easily: SameSite ignores ports, so a page of any other server on this host is the same *site*. So each change needs
a nonce in a custom header:

- the nonce is in headers of responses that only scripts of this origin can read (the server sends no CORS headers),
- a custom header makes the browser send a preflight for a foreign script's request, which this server does not allow,
- links, images, forms and redirects cannot set headers at all.

`Sec-Fetch-Site`, or `Origin` and `Referer` if a browser does not send it, are also checked, so that a leaked nonce is
not enough. All of them match for a page whose name was rebound to this server (DNS rebinding), so `Host` must be this
host's name, loopback or an IP address; any other host name needs Ray's token in a header. Without Ray's token
authentication, a browser cannot change anything.
"""

import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from serving.sockets.host_names import AllowedHosts

NONCE_HEADER = "X-Pools-Nonce"


class Guard:
    """Distinguishes requests of this page from those of others.

    Args:
        controls: whether a browser may make changes; only with Ray's token authentication.
    """

    def __init__(self, *, controls: bool) -> None:
        self.controls = controls
        self.nonce = secrets.token_urlsafe(24)
        self._hosts = AllowedHosts(any_address=True)

    def objection(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Reason to refuse a change from a browser.

        Args:
            headers: of the request, by case-insensitive name.
        Returns: kind and reason; None = the change is allowed. Kind `stale`: the page must fetch a new nonce.
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
        """Reason to refuse even a read: the request is from a page of another origin, or one posing as this server.

        Args:
            headers: of the request, by case-insensitive name.
        Returns: kind and reason; None = the read is allowed.
        """
        if foreign(headers):
            return "foreign", "Only the page itself may ask for this."
        host = headers.get("Host")
        knows_token = self.controls and "Authorization" in headers  # Ray has checked it, and a page cannot know it
        if host is None or knows_token or self._hosts.allow(host):
            return None
        return "foreign", "The Host header is no name of this server: ask by this machine's name or an address."


def foreign(headers: Mapping[str, str]) -> bool:
    """Whether, by the browser's headers, a request is from another origin than its target."""
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")  # none: typed, or from a bookmark
    host = headers.get("Host", "").lower()
    sources = (headers.get("Origin"), headers.get("Referer"))
    return any(_host_of(source) != host for source in sources if source is not None)


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).netloc.lower()
    except ValueError:  # not a URL
        return ""
