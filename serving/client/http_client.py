"""HTTP client of the commands: a request, a JSON response or a stream of them, errors in one line.

    ask_gateway, ask_dashboard ──► ask ──► fetch ──┬─► urllib
                   gateway_events ──► ask_events ──┘
        server kind, messages        key, deadline, retries, refusals

Requests to loopback addresses bypass the proxies of the environment: a proxy cannot reach this machine's loopback and
must not receive the API keys of such requests. Redirects to another server are not followed either. Every request has a
deadline, every response a maximum size. A request is retried only where its caller allows that, and only while there
is no response.
"""

import argparse
import http.client
import ipaddress
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, TypeVar
from urllib.parse import urlsplit

from hardware.nesting import parse_json
from loadgen.server_address import nothing_listens, server_address
from serving.errors import SilentError, UnavailableError, in_words

# HTTP client of the commands: a request, a JSON response or a stream of them, errors in one line.

MOST_ANSWER_BYTES = 256 << 20
"""Far more than the decisions and pools of the largest system; a larger response is not from a system of ours."""
PATIENCE_S = 60.0
"""How long a request is repeated. Ctrl-C stops it sooner."""
PAUSE_S = 0.5
SILENCE_S = 600.0
"""How long a stream may be silent: a request may wait that long in a gateway's queue. Ctrl-C stops it sooner."""
_PIECE_BYTES = 1 << 16
_MOST_EVENT_BYTES = 1 << 24

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of server, with its deadline and the hints in its error messages.

    Args:
        name: in messages.
        deadline_s: for a response, unless the request sets one [s].
        absent: hint when no server listens.
        wants_key: hint when the server rejects the key without a message.
    """

    name: str
    deadline_s: float
    absent: str
    wants_key: str


GATEWAY: Final = ServerKind(
    "gateway", 5.0, "start one with `cloudmatrix serve`, or give --url", "give its key with --api-key"
)
DASHBOARD: Final = ServerKind(
    "dashboard",
    12.0,  # its first request makes it connect to Ray, which takes a moment
    "`cloudmatrix serve` prints its address, for --dashboard; it is on Ray's head, which may have to be started again",
    "it does not accept the token; `cloudmatrix serve` prints it at its start, for --token",
)


class RefusedError(UnavailableError):
    """A server responded with an error.

    Args:
        error: the object "error" of the response; empty if there is none.
        mistaken: the server is the right one and accepts the key, but not what was requested.
    """

    def __init__(self, message: str, error: dict[str, Any], *, mistaken: bool = False) -> None:
        super().__init__(message)
        self.error = error
        self.mistaken = mistaken


def ask(
    server: ServerKind,
    url: str,
    path: str,
    key: str | None,
    *,
    method: str | None = None,
    body: dict[str, Any] | None = None,
    deadline_s: float | None = None,
) -> dict[str, Any]:
    """Send one request to a server and return its JSON object.

    Args:
        url: address of the server, with or without http://.
        path: from the address's root, already quoted.
        key: sent as a bearer token.
        method: None = GET, or POST with a body.
        deadline_s: for the response [s], instead of the server kind's.
    Raises: UnavailableError, in one line, when it cannot be reached or is another kind of server; RefusedError when it
        refuses; SilentError when it does not respond in time.
    """
    deadline_s = server.deadline_s if deadline_s is None else deadline_s
    with _mistakes_in_one_line(server, url, deadline_s):
        return _json_object(fetch(_question(url, path, key, method, body), deadline_s))


def ask_events(
    server: ServerKind, url: str, path: str, key: str | None, body: dict[str, Any], *, silence_s: float = SILENCE_S
) -> Generator[dict[str, Any]]:
    """Post a request and yield the object of each server-sent event as it arrives. Closing the generator disconnects.

    Args:
        url, path, key: as for `ask`. body: is posted.
        silence_s: longest time between two events [s].
    Raises: as `ask`; UnavailableError when the stream breaks off, RefusedError when it ends with an error.
    """
    with _mistakes_in_one_line(server, url, silence_s):
        response = _open(_question(url, path, key, None, body), silence_s)
    try:
        with response:
            while (line := response.readline(_MOST_EVENT_BYTES)) and line.strip() != b"data: [DONE]":
                if line.startswith(b"data: "):
                    yield _without_error(_json_object(line.removeprefix(b"data: ")))
    except (OSError, ValueError, http.client.HTTPException) as error:
        if is_timeout(error):
            raise SilentError(f"the {server.name} at {url} has said nothing for {silence_s:g} s") from error
        raise UnavailableError(f"the answer of the {server.name} at {url} cannot be read ({error})") from error
    if not line:
        raise UnavailableError(f"the {server.name} at {url} has gone before the answer was complete")


ask_gateway: Final = partial(ask, GATEWAY)
ask_dashboard: Final = partial(ask, DASHBOARD)
gateway_events: Final = partial(ask_events, GATEWAY)


def ask_again(question: Callable[[], Answer]) -> Answer:
    """Repeat a request until there is a response.

    Args:
        question: sends the request once, with a deadline of its own; must be safe to repeat.
    Raises: SilentError if there is no response within `PATIENCE_S`; any other error of `question` immediately.
    Effects: writes one line to standard error when the first response is late.
    """
    end = time.monotonic() + PATIENCE_S
    waiting = False
    while True:
        try:
            return question()
        except SilentError as error:
            if time.monotonic() + PAUSE_S >= end:
                raise
            if not waiting:
                waiting = True
                print(f"cloudmatrix: {error}; waiting for up to {PATIENCE_S:.0f} s", file=sys.stderr, flush=True)
        time.sleep(PAUSE_S)


def fetch(request: urllib.request.Request, deadline_s: float, *, direct: bool = False) -> bytes:
    """The body of a successful response.

    Args:
        direct: bypass proxies for any address.
    Raises: urllib.error.HTTPError for any other response; OSError, ValueError if there is none, or it is not HTTP, or
        it redirects to another server, or is larger than `MOST_ANSWER_BYTES`.
    """
    end = time.monotonic() + deadline_s
    with _no_http_is_no_connection(), _open(request, deadline_s, direct=direct) as response:
        return _read(response, end)


def is_timeout(error: Exception) -> bool:
    """Whether a request failed because no response arrived in time."""
    return isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)


class _SameOrigin(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one server only, because the request includes its API key."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Follow a redirect as the base class does. Raises: ConnectionError if it leads to another server."""
        if _origin(newurl) != _origin(req.full_url):
            fp.close()
            raise ConnectionError(f"it points to {newurl}, and nobody else is asked")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _SameOrigin)


def _question(
    url: str, path: str, key: str | None, method: str | None, body: dict[str, Any] | None
) -> urllib.request.Request:
    """Build the request for `ask`. Raises: argparse.ArgumentTypeError for an invalid address."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    return urllib.request.Request(f"{server_address(url)}{path}", data=data, headers=headers, method=method)


def _open(request: urllib.request.Request, deadline_s: float, *, direct: bool = False) -> http.client.HTTPResponse:
    opener = _DIRECT if direct or _is_here(request.full_url) else urllib.request.build_opener(_SameOrigin)
    with _no_http_is_no_connection():
        response: http.client.HTTPResponse = opener.open(request, timeout=deadline_s)
    return response


@contextmanager
def _no_http_is_no_connection() -> Iterator[None]:
    try:
        yield
    except http.client.HTTPException as error:
        raise ConnectionError(f"the answer is no HTTP: {str(error).strip() or type(error).__name__}") from error


@contextmanager
def _mistakes_in_one_line(server: ServerKind, url: str, deadline_s: float) -> Iterator[None]:
    """Convert the errors of a request to those that `ask` raises."""
    try:
        yield
    except urllib.error.HTTPError as error:
        raise _refusal(server, url, error) from error
    except (OSError, ValueError, argparse.ArgumentTypeError) as error:
        if is_timeout(error):
            raise SilentError(f"the {server.name} at {url} does not answer within {deadline_s:g} s") from error
        refused = isinstance(getattr(error, "reason", None), ConnectionRefusedError)
        if server is GATEWAY and refused and (_is_here(url) or not urllib.request.getproxies()):
            raise UnavailableError(nothing_listens(url)) from error
        raise UnavailableError(f"no {server.name} at {url} ({in_words(error)}); {server.absent}") from error


def _json_object(text: bytes) -> dict[str, Any]:
    answer = parse_json(text)
    if not isinstance(answer, dict):
        raise ValueError("the answer is no JSON object")
    return answer


def _without_error(event: dict[str, Any]) -> dict[str, Any]:
    """Return the event. Raises: RefusedError if it reports an error, which ends the stream."""
    error = event.get("error")
    if isinstance(error, dict):
        raise RefusedError(str(error.get("message")), error)
    return event


def _read(response: "http.client.HTTPResponse | urllib.error.HTTPError", end: float) -> bytes:
    """A whole body. Raises: TimeoutError if it is incomplete at its deadline; ValueError if it is too large."""
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            raise ValueError(f"its answer is longer than {MOST_ANSWER_BYTES >> 20} MiB")
        if time.monotonic() > end:
            raise TimeoutError("its answer does not end")
    if getattr(response, "length", 0):  # `read1` does not report a premature end
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _refusal(server: ServerKind, url: str, error: urllib.error.HTTPError) -> RefusedError:
    """The error for an unsuccessful response, with the server's own message if it is one of ours."""
    error_object: dict[str, Any] = {}
    with error:
        try:
            error_object = dict(parse_json(_read(error, time.monotonic() + server.deadline_s))["error"])
            message = str(error_object["message"])
        except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
            message = server.wants_key if error.code in (401, 403) else f"is that a CloudMatrix {server.name}?"
    if error.code == 401:
        message = server.wants_key
    mistaken = bool(error_object) and error.code in (400, 404, 409, 422)
    return RefusedError(f"{url} answered {error.code}: {message}", error_object, mistaken=mistaken)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _is_here(url: str) -> bool:
    """Whether an address is a loopback address, without a name lookup."""
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
