"""A request rendered before it is due, so that sending it is one write.

`RequestWriter` computes the common part of the head once per run; only the id and the length remain per request.
"""

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from loadgen.endpoint import Endpoint
from loadgen.errors import UsageError

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """Head and body as one piece of bytes.

    Attributes:
        wire: what is written to the connection. head_bytes: length of the head in it.
        request_id: sent as x-request-id.
    """

    wire: bytes
    head_bytes: int
    request_id: str

    @property
    def body(self) -> bytes:
        """The body alone (a copy)."""
        return self.wire[self.head_bytes :]


class RequestWriter:
    """Renders the requests of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        address = parse_address(endpoint.base_url)
        given = {name.lower() for name, _ in endpoint.headers}
        lines = [f"POST {address.prefix}{endpoint.path} HTTP/1.1"]
        # Compression would cost server and client CPU time that no figure covers.
        defaults = [("Host", address.authority), ("Accept", "*/*"), ("Accept-Encoding", "identity")]
        lines += [f"{name}: {value}" for name, value in defaults if name.lower() not in given]
        own = ("content-type", "content-length", "x-request-id", "connection", "transfer-encoding")
        lines += [f"{name}: {value}" for name, value in endpoint.headers if name.lower() not in own]
        self._shared = "\r\n".join(lines).encode("latin-1")

    def prepare(self, body: bytes, request_id: str, content_type: str = JSON_TYPE) -> PreparedRequest:
        """Render one request.

        Args:
            request_id: sent as x-request-id, so that server logs can be matched with records.
        """
        head = b"%b\r\nContent-Type: %b\r\nContent-Length: %d\r\nx-request-id: %b\r\n\r\n" % (
            self._shared,
            content_type.encode("latin-1"),
            len(body),
            request_id.encode("latin-1"),
        )
        return PreparedRequest(head + body, len(head), request_id)


# Server address and the constant part of the request head, computed once per run from the endpoint.

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
