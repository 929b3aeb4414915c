"""Limits on connections to the HTTP server: in total, and per client address.

    slot         while                                          what the connection may request
    ORDINARY     below the limit and the address's share        all routes
    PROBE        beyond, while a probe slot is left             health and metrics; other routes respond 503
    NONE         beyond all slots                               none: it receives 503 and is closed

The limit is below the process's limit of open files: at that limit the process could accept no connection, open no link
to an instance and read no file.
"""

import re
import resource
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv6Address

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from serving.config.serve import ServeConfig
from serving.gateway.api.http.cors import origin_headers
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.http.request_ids import usable_request_id

PROBES = 64
"""Connections reserved for health checks and scrapers when all others are in use; at most half of them per address."""
MOST_CONNECTIONS = 65_536
HELD_HEADS_BYTES = 64 << 20
"""Limit of all unfinished request heads together; ordinary heads arrive in one piece and are not counted."""


class ConnectionSlot(Enum):
    """Kind of requests that a connection may send."""

    ORDINARY = "ordinary"
    PROBE = "probe"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the HTTP server on size, time and number of connections.

    Args:
        max_head_bytes: of request line and headers; beyond it 431.
        head_timeout_s: until they must be complete; otherwise 408.
        body_timeout_s: without a byte of an unfinished body; then 408.
        request_timeout_s: until the whole body must have arrived; otherwise 408.
        max_connections: open concurrently; 0 = as many as the limit of open files allows.
        address_share: of them for one address.
        allowed_origins: origins whose pages may read the server's own responses.
    """

    max_head_bytes: int = 64 << 10
    head_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    request_timeout_s: float = 600.0
    max_connections: int = 0
    address_share: float = 0.5
    allowed_origins: tuple[str, ...] = ()


def connection_limits(config: ServeConfig) -> ConnectionLimits:
    """The limits of a configuration."""
    gateway = config.gateway
    return ConnectionLimits(
        max_head_bytes=gateway.max_head_bytes,
        head_timeout_s=gateway.head_timeout_s,
        body_timeout_s=gateway.body_timeout_s,
        request_timeout_s=gateway.request_timeout_s,
        max_connections=gateway.max_connections,
        address_share=gateway.address_share,
        allowed_origins=gateway.allowed_origins,
    )


class ConnectionLimiter:
    """Counts open connections.

    Args:
        open_files: this process's limit of open files.
    """

    def __init__(self, limits: ConnectionLimits, open_files: int | None = None) -> None:
        self._files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if open_files is None else open_files
        self.configure(limits)
        self.held_bytes = 0
        """Bytes of unfinished request heads."""
        self._total: Counter[ConnectionSlot] = Counter()
        self._of: Counter[tuple[ConnectionSlot, str]] = Counter()

    def configure(self, limits: ConnectionLimits) -> None:
        """Apply other limits; open connections are kept."""
        self.limit = connection_limit(limits.max_connections, self._files)
        self.share = max(1, int(self.limit * limits.address_share))

    def enter(self, address: str) -> ConnectionSlot:
        """Count a new connection. Effects: occupies a slot until `leave`."""
        place = self._place(address)
        if place is not ConnectionSlot.NONE:
            self._total[place] += 1
            self._of[place, address] += 1
        return place

    def leave(self, address: str, place: ConnectionSlot) -> None:
        """Count a closed connection."""
        if place is ConnectionSlot.NONE:
            return
        self._total[place] -= 1
        self._of[place, address] -= 1
        if not self._of[place, address]:
            del self._of[place, address]

    def _place(self, address: str) -> ConnectionSlot:
        if (
            self._total[ConnectionSlot.ORDINARY] < self.limit
            and self._of[ConnectionSlot.ORDINARY, address] < self.share
        ):
            return ConnectionSlot.ORDINARY
        if self._total[ConnectionSlot.PROBE] < PROBES and self._of[ConnectionSlot.PROBE, address] < PROBES // 2:
            return ConnectionSlot.PROBE
        return ConnectionSlot.NONE


def connection_limit(asked: int, open_files: int) -> int:
    """Concurrent connections: the requested number, limited so that files for links, probes and the disk are left."""
    kept = max(2 * PROBES, open_files // 8)
    most = max(1, min(MOST_CONNECTIONS, open_files - kept))
    return min(asked, most) if asked else most


def address_of(host: str) -> str:
    """Address that a connection is counted for: IPv4, or an IPv6 network of 64 bits, which one host may own."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address.packed[:8].hex())


# Responses that the HTTP server sends itself, instead of the application, with the headers of all responses.

Headers = Iterable[tuple[bytes, bytes]]

FULL = ErrorReply(
    503,
    "too many connections are open; try again shortly",
    "server_error",
    None,
    "service_unavailable",
    {"retry-after": "1"},
)
LATE_HEAD = ErrorReply(408, "the request's headers did not arrive in time", "timeout_error", None, "request_timeout")
LATE_BODY = ErrorReply(408, "the request's body did not arrive in time", "timeout_error", None, "request_timeout")
GARBAGE = ErrorReply(400, "this is no HTTP/1.1 request", "invalid_request_error", None, "invalid_http")

_LINE = re.compile(rb"\r\n(origin|x-request-id):[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)


def too_large(limit: int) -> ErrorReply:
    """The error for request line and headers above `limit` bytes."""
    text = f"request line and headers are larger than the limit of {limit} bytes; send less"
    return ErrorReply(431, text, "invalid_request_error", None, "headers_too_large")


def headers_in(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The request headers needed for a response, from unparsed bytes."""
    return [(name.lower(), value) for name, value in _LINE.findall(raw)]


def wire(reply: ErrorReply, headers: Headers, origins: tuple[str, ...]) -> bytes:
    """The whole response; the connection must be closed after it.

    Args:
        headers: known headers of the request.
        origins: origins whose pages may read the response.
    """
    given: Mapping[bytes, bytes] = dict(reversed(list(headers)))  # the first of each name counts
    own_id = usable_request_id(given.get(b"x-request-id", b"").decode("latin-1"))
    origin = given[b"origin"].decode("latin-1") if b"origin" in given else None
    request_id = own_id or f"req-{uuid.uuid4().hex}"
    body = reply.body()
    lines = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        **reply.headers,
        "x-request-id": request_id,
        "request-id": request_id,  # the path, and with it the client's API, may be unknown
        **origin_headers(origins, origin),
        "connection": "close",
    }
    head = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in lines.items())
    return STATUS_LINE[reply.status] + head + b"\r\n" + body
