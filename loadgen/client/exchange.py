"""One request and its response as they crossed the wire: timestamps and bytes, not interpreted.

Interpreting costs more than receiving, so it is done later (see `digest` and `digester`): while bytes arrive, the
client only records when. All times are seconds from the start of the run.
"""

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from loadgen.plan import Behaviour, Conduct

if TYPE_CHECKING:
    from loadgen.client.reader import AnswerReader


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Optional contents of records; both cost memory for the whole run."""

    body: bool = False
    text: bool = False


class Failure(StrEnum):
    """Why an exchange ended before a complete HTTP response."""

    CONNECT = "connect"  # no connection: refused, name unknown, TLS, out of descriptors, not in time
    LOST = "lost"  # the connection broke before the answer was complete
    NOT_HTTP = "not_http"  # the received bytes are no HTTP response
    DEADLINE = "deadline"  # the run's own limit for a request
    LEFT = "left"  # closed on purpose, as the behaviour requires
    CUT = "cut"  # the run ended first


class Exchange:
    """State of one request; filled by the client, read by the digest.

    Attributes:
        request_id: the server's x-request-id once received, before that the one that was sent.
        behaviour: how the client behaved.
        body: request body sent, if the client keeps bodies.
        started_s: start of the connect or write. connect_s: time to open a connection; None if one was kept.
        first_byte_s: status line. ended_s: last byte of the answer, or the moment it was given up.
        status: HTTP status, 0 if none was received. content_type, retry_after: header values, empty if absent.
        times, parts: one entry per HTTP chunk of the answer's body (per read, if the body is not chunked): arrival, and
            the bytes. The digest of a long stream takes away from the front while more arrives.
        failure, error: reason for the early end, and a one-line description; None and empty for a complete answer.
        reader: incremental parse state, used while the stream still runs (long streams, departures after n chunks).
    """

    __slots__ = (
        "behaviour",
        "body",
        "connect_s",
        "content_type",
        "ended_s",
        "error",
        "failure",
        "first_byte_s",
        "parts",
        "reader",
        "request_id",
        "retry_after",
        "started_s",
        "status",
        "times",
    )

    def __init__(self, request_id: str, behaviour: Behaviour, started_s: float, body: bytes | None = None) -> None:
        self.request_id = request_id
        self.behaviour = behaviour
        self.body = body
        self.started_s = started_s
        self.connect_s: float | None = None
        self.first_byte_s: float | None = None
        self.ended_s: float | None = None
        self.status = 0
        self.content_type = ""
        self.retry_after = ""
        self.times: list[float] = []
        self.parts: list[bytes] = []
        self.failure: Failure | None = None
        self.error = ""
        self.reader: AnswerReader | None = None

    @property
    def conduct(self) -> Conduct:
        """How the client behaved, by name."""
        return self.behaviour.conduct

    def take_parts(self) -> tuple[list[float], list[bytes]]:
        """Take the parts that have arrived so far.

        Effects: the exchange continues with empty lists.
        """
        times, parts = self.times, self.parts
        self.times, self.parts = [], []
        return times, parts
