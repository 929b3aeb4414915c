"""One question over HTTP, one answer; what is on this machine is asked directly, whatever proxy the environment names.

A proxy does not reach this machine's loopback, and the tokens that such questions carry are none of its business.
"""

import http.client
import ipaddress
import urllib.request
from urllib.parse import urlsplit

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(request: urllib.request.Request, deadline_s: float, *, direct: bool = False) -> bytes:
    """The body of a good answer.

    Args:
        direct: ask without a proxy wherever it is.
    Raises: urllib.error.HTTPError for any other answer; OSError, ValueError if there is none, or it is no HTTP.
    """
    ask = _DIRECT.open if direct or _is_here(request.full_url) else urllib.request.urlopen
    try:
        with ask(request, timeout=deadline_s) as response:
            body: bytes = response.read()
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is no HTTP: {str(error).strip() or type(error).__name__}") from error
    return body


def _is_here(url: str) -> bool:
    """Whether an address means this machine, whatever its name service says."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
