"""One question over HTTP, one answer; what is on this machine is asked directly, whatever proxy the environment names.

A proxy does not reach this machine's loopback, and the tokens that such questions carry are none of its business. Nor
are they anybody else's to whom an answer points.
"""

import http.client
import ipaddress
import urllib.request
from typing import IO
from urllib.parse import urlsplit


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects within a server only: the question goes along with its token."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """As the base class. Raises: ConnectionError where it leads to another server."""
        if _origin(newurl) != _origin(req.full_url):
            fp.close()
            raise ConnectionError(f"it points to {newurl}, and nobody else is asked")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameOrigin)


def fetch(request: urllib.request.Request, deadline_s: float, *, direct: bool = False) -> bytes:
    """The body of a good answer.

    Args:
        direct: ask without a proxy wherever it is.
    Raises: urllib.error.HTTPError for any other answer; OSError, ValueError if there is none, or it is no HTTP, or it
        points to another server.
    """
    opener = _DIRECT if direct or _is_here(request.full_url) else urllib.request.build_opener(_SameOrigin)
    try:
        with opener.open(request, timeout=deadline_s) as response:
            body: bytes = response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is no HTTP: {str(error).strip() or type(error).__name__}") from error
    return body


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _is_here(url: str) -> bool:
    """Whether an address means this machine, whatever its name service says."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
