"""A kept HTTP connection for the few calls outside the load, each with a deadline for the whole call.

`http.client` limits each read, not their sum: a server that drips bytes would hold it for ever. So responses are read
through a stream that shortens the socket's limit to the rest of the call's time. Not for the load itself.
"""

import functools
import http.client
import io
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON, AuthRefused, ServerError, ServerUnreachable, UsageError
from loadgen.server_address import nothing_listens

LARGEST_ANSWER_BYTES = 64 * 2**20
"""Far above any page of metrics; a server that streams for ever must not fill our memory."""
_PIECE_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class ServerReply:
    """A raw response. `location`: where a redirect points, empty if none."""

    status: int
    body: bytes
    location: str = ""

    def json(self) -> object:
        """The body as JSON; None if it is none."""
        try:
            return json_text.decode(self.body)
        except NOT_JSON:
            return None


class QueryConnection:
    """Requests to one server, one after another. Not thread-safe."""

    def __init__(
        self,
        base_url: str,
        headers: Sequence[tuple[str, str]] = (),
        *,
        verify_tls: bool = True,
        largest_bytes: int = LARGEST_ANSWER_BYTES,
    ) -> None:
        """Store the address; no connection before the first request.

        Args:
            base_url: as `Endpoint.base_url`; a path in it is prepended to every requested path.
            headers: sent with every request.
            largest_bytes: of a response; a larger one is given up.
        Raises: UsageError if `base_url` is no address.
        """
        self.base_url = base_url.rstrip("/")
        try:
            self._parts = urlsplit(self.base_url)
            usable = self._parts.scheme in ("http", "https") and self._parts.hostname and self._parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise UsageError(f"{base_url} is not an address; write e.g. http://127.0.0.1:8000")
        self._headers = dict(headers)
        self._verify_tls = verify_tls
        self._largest_bytes = largest_bytes
        self._kept: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, *, body: bytes | None = None, timeout_s: float) -> ServerReply:
        """One exchange. A kept connection that turns out closed is replaced once, silently.

        Args:
            timeout_s: for all of it, except that looking up the host's name has the system's own limit, and that each
                of the host's addresses may take as long to connect.
        Raises: ServerUnreachable for any failure, in one line.
        Effects: keeps the connection open where the server allows it.
        """
        deadline = time.monotonic() + timeout_s
        reused = self._kept is not None
        try:
            try:
                return self._exchange(method, path, body, deadline)
            except ConnectionError:
                self.close()
                if not reused:
                    raise
                return self._exchange(method, path, body, deadline)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise ServerUnreachable(self._explain(error, timeout_s)) from None
        except BaseException:  # Ctrl-C in the middle of an answer: its rest must not be taken for the next one
            self.close()
            raise

    def get(self, path: str, timeout_s: float) -> ServerReply:
        """`request` without a body."""
        return self.request("GET", path, timeout_s=timeout_s)

    def post(self, path: str, fields: object, timeout_s: float) -> ServerReply:
        """`request` with a JSON body."""
        return self.request("POST", path, body=msgspec.json.encode(fields), timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection, if one is open; the next request opens another."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _exchange(self, method: str, path: str, body: bytes | None, deadline: float) -> ServerReply:
        """Send and read once."""
        connection = self._kept or self._open(deadline)
        self._kept = connection
        connection.sock.settimeout(_left(deadline))
        # Called as the class would be.
        connection.response_class = functools.partial(_TimedResponse, deadline)  # type: ignore[assignment]
        headers = dict(self._headers) | ({"Content-Type": "application/json"} if body is not None else {})
        connection.request(method, f"{self._parts.path}{path}", body=body, headers=headers)
        response = connection.getresponse()
        reply = ServerReply(response.status, _read(response, self._largest_bytes), response.getheader("location") or "")
        if response.will_close:
            self.close()
        return reply

    def _open(self, deadline: float) -> http.client.HTTPConnection:
        """A new connection."""
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            if not self._verify_tls:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_left(deadline), context=context
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_left(deadline))
        connection.connect()
        return connection

    def _explain(self, error: Exception, timeout_s: float) -> str:
        """Describe a failure and its remedy in one line."""
        where = self.base_url
        match error:
            case ConnectionRefusedError():
                return nothing_listens(where)
            case socket.gaierror() | UnicodeError():
                return f"cannot find the host of {where}: check the name"
            case ssl.SSLCertVerificationError():
                return f"{where} has a certificate that cannot be trusted ({error.verify_message}); --insecure takes it"
            case ssl.SSLError():
                return f"{where} does not speak TLS ({error.reason or error}): is it http:// instead?"
            case TimeoutError():
                return f"no answer from {where} within {timeout_s:g} s"
            case ConnectionError():
                return f"{where} closed the connection without an answer: is it https:// instead?"
            case http.client.IncompleteRead():
                return f"{where} closed the connection in the middle of its answer"
            case http.client.HTTPException():
                return f"what listens at {where} does not speak HTTP ({_one_line(str(error)) or type(error).__name__})"
            case OSError():
                return f"cannot reach {where}: {error.strerror or error}"
            case _:
                return f"cannot ask {where}: {_one_line(str(error))}"


class _TimedResponse(http.client.HTTPResponse):
    """A response whose every byte must arrive before a deadline."""

    def __init__(
        self,
        deadline: float,
        sock: socket.socket,
        debuglevel: int = 0,
        method: str | None = None,
        url: str | None = None,
    ) -> None:
        """Make the response of the base class read from a stream with a deadline."""
        super().__init__(sock, debuglevel, method, url)
        untimed, self.fp = self.fp, io.BufferedReader(_TimedStream(sock, deadline))
        untimed.close()


class _TimedStream(io.RawIOBase):
    """Stream of bytes that a socket receives until a deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        """Read from `sock`, which stays open until this is closed as well."""
        self._sock = sock
        self._stream = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]  # a Buffer in the stubs
        """See `io.RawIOBase`.

        Raises: TimeoutError when the deadline has passed.
        """
        self._sock.settimeout(_left(self._deadline))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        """Give the socket free."""
        if not self.closed:
            self._stream.close()
        super().close()


def refuse(connection: QueryConnection, path: str, reply: ServerReply) -> NoReturn:
    """Raise the error for an unusable response.

    Raises: AuthRefused for 401 and 403; ServerUnreachable for 5xx, which may pass; ServerError for the rest.
    """
    what = f"{connection.base_url}{path}"
    said = _message(reply)
    if reply.status in (401, 403):
        raise AuthRefused(f"{what} answers {reply.status}{said}: give the right --api-key, or set OPENAI_API_KEY")
    if reply.location:
        raise ServerError(f"{what} answers {reply.status} and points to {reply.location}: give that address as --url")
    if reply.status >= 500:
        raise ServerUnreachable(f"{what} answers {reply.status}{said}")
    raise ServerError(f"{what} answers {reply.status}{said}: is it an OpenAI-compatible server?")


def _read(response: http.client.HTTPResponse, largest_bytes: int) -> bytes:
    """The whole body.

    Raises: ValueError if it does not end; IncompleteRead if the connection does, too early.
    """
    pieces, size = [], 0
    while piece := response.read(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > largest_bytes:
            raise ValueError(f"its answer is larger than {largest_bytes >> 20} MiB")
    if response.length:  # read(n) takes an early end for the end
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _message(reply: ServerReply) -> str:
    """Message of an error response, in brackets; empty if the body has no message."""
    value = reply.json()
    error = value.get("error", value.get("detail", value.get("message"))) if isinstance(value, dict) else None
    text = error.get("message") if isinstance(error, dict) else error
    return f" ({_one_line(text)})" if isinstance(text, str) and text.strip() else ""


def _one_line(text: str) -> str:
    """At most one line of a terminal of foreign text, without control characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= 160 else line[:159] + "…"


def _left(deadline: float) -> float:
    """Seconds until a deadline.

    Raises: TimeoutError if it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
