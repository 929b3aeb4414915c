"""Responses that the HTTP server sends itself, instead of the application, with the headers of all responses."""

import re
import uuid
from collections.abc import Iterable, Mapping

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from serving.gateway.api.cors import origin_headers
from serving.gateway.api.errors import ErrorReply
from serving.gateway.api.request_ids import usable_request_id

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
