"""A request rendered before it is due, so that sending it is one write.

`RequestWriter` computes the common part of the head once per run; only the id and the length remain per request.
"""

from dataclasses import dataclass

from loadgen.client.address import parse_address
from loadgen.endpoint import Endpoint

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
