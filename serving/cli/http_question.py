"""One question over HTTP, one answer; what is on this machine is asked directly, whatever proxy the environment names.

A proxy does not reach this machine's loopback, and the tokens that such questions carry are none of its business. Nor
are they anybody else's to whom an answer points.
"""

import argparse
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


def server_address(text: str) -> str:
    """An address as people type it, as a URL: `127.0.0.1:8000` -> `http://127.0.0.1:8000`. A `type` for argparse.

    Raises: argparse.ArgumentTypeError if it names no server.
    """
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine or parts.query or parts.fragment or any(character.isspace() for character in url):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; write e.g. 127.0.0.1:8000 or http://127.0.0.1:8000")
    return url


def is_timeout(error: Exception) -> bool:
    """Whether a question failed because no answer came in time."""
    return isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)


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
