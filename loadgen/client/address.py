"""Server address and the constant part of the request head, computed once per run from the endpoint."""

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadgen.endpoint import Endpoint
from loadgen.errors import UsageError

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Host and port to connect to, value of the Host header, and path prefix of the endpoint."""

    host: str
    port: int
    secure: bool
    authority: str
    prefix: str


def parse_address(base_url: str) -> ServerAddress:
    """Split a base URL.

    Raises: UsageError if it names no http or https server.
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"{base_url}: not an address ({error}); write e.g. http://127.0.0.1:8000") from error
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise UsageError(f"{base_url}: not an http or https address; write e.g. http://127.0.0.1:8000")
    default = _DEFAULT_PORTS[parts.scheme]
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port in (None, default) else f"{shown}:{port}"
    return ServerAddress(host, port or default, parts.scheme == "https", authority, parts.path.rstrip("/"))


def tls_context(endpoint: Endpoint) -> ssl.SSLContext | None:
    """TLS context of an endpoint; None for plain http. With `verify_tls` off, any certificate is accepted."""
    if not parse_address(endpoint.base_url).secure:
        return None
    context = ssl.create_default_context()
    if not endpoint.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])  # a server that could speak HTTP/2 must not choose it
    return context
