"""One request over HTTP/1.1, read as it arrives: every piece with its arrival time. A connection for each.

Minimal on purpose: a tool that proves that no token was lost must not have retries, a connection pool or a buffer
between itself and the server.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from hardware.nesting import parse_json
from serving.errors import ConfigError
from serving.tools.chaos.asks import StreamedAnswer

_MOST_LINE = 1 << 20
_SHOWN = 300


class ProtocolError(Exception):
    """The response violates this protocol, or is incomplete."""


@dataclass(frozen=True, slots=True)
class GatewayEndpoint:
    """Address of the gateway, and the API key for it."""

    host: str
    port: int
    api_key: str | None = None

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> "GatewayEndpoint":
        """Parse a base URL.

        Raises: ConfigError if it is more than a host and a port, or not plain HTTP.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.path not in ("", "/"):
            raise ConfigError(f"--url {url}: name the gateway itself, such as http://127.0.0.1:8000")
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, api_key)


async def fetch(
    endpoint: GatewayEndpoint,
    answer: StreamedAnswer,
    deadline_s: float,
    enough: Callable[[StreamedAnswer], bool] | None = None,
) -> None:
    """Send an ask and read its response.

    Args:
        answer: created for the ask, still empty.
        enough: disconnect as soon as this is true, in the middle of the response.
    Effects: fills `answer` with the received data and the outcome; never raises for the server's behaviour.
    """
    try:
        async with asyncio.timeout(deadline_s):
            await _exchange(endpoint, answer, enough)
        if answer.outcome == "open":
            _judge(answer)
    except TimeoutError:
        _fail(answer, f"no end after {deadline_s:g} s")
    except (OSError, asyncio.IncompleteReadError, ProtocolError, ValueError, KeyError, TypeError, IndexError) as error:
        _fail(answer, f"{type(error).__name__}: {error}"[:_SHOWN])
    answer.ended_s = time.monotonic()


def _judge(answer: StreamedAnswer) -> None:
    if answer.complete:
        answer.outcome = "finished"
    else:
        _fail(answer, "the stream ended before the response was complete")


def _fail(answer: StreamedAnswer, reason: str) -> None:
    answer.outcome, answer.reason = "failed", reason


async def _exchange(
    endpoint: GatewayEndpoint, answer: StreamedAnswer, enough: Callable[[StreamedAnswer], bool] | None
) -> None:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, limit=_MOST_LINE)
    try:
        writer.write(_request(endpoint, answer))
        await writer.drain()
        status, headers = await _head(reader)
        body = _chunks(reader) if "chunked" in headers.get("transfer-encoding", "") else _rest(reader)
        if status != 200:
            text = b"".join([part async for part in body]).decode(errors="replace")
            raise ProtocolError(f"HTTP {status}: {_message(text)}")
        if answer.ask.streamed:
            await _read_events(body, answer, enough)
        else:
            whole = b"".join([part async for part in body])
            answer.take(parse_json(whole), time.monotonic())
    finally:
        if answer.outcome == "cancelled":
            writer.transport.abort()  # as a client that was killed
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _request(endpoint: GatewayEndpoint, answer: StreamedAnswer) -> bytes:
    body = json.dumps(answer.ask.body).encode()
    key = f"Authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
    head = (
        f"POST {answer.ask.path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\n{key}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first = (await reader.readline()).decode("latin-1").split(None, 2)
    if len(first) < 2 or not first[0].startswith("HTTP/1."):
        raise ProtocolError("the connection was closed without an answer" if not first else f"no HTTP: {first[0]!r}")
    headers: dict[str, str] = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip().lower()
    return int(first[1]), headers


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Parts of a chunked body.

    Raises: IncompleteReadError, ProtocolError if it is cut.
    """
    while True:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise ProtocolError("the connection was closed in the middle of an answer")
        size = int(line.split(b";")[0], 16)
        part = await reader.readexactly(size + 2)
        if not size:
            return
        yield part[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while part := await reader.read(1 << 16):
        yield part


async def _read_events(
    body: AsyncIterator[bytes], answer: StreamedAnswer, enough: Callable[[StreamedAnswer], bool] | None
) -> None:
    """Server-sent events until `[DONE]`."""
    rest = b""
    async for part in body:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                return
            event = parse_json(data)
            if "error" in event:
                raise ProtocolError(f"in the stream: {_message(data.decode(errors='replace'))}")
            answer.take(event, time.monotonic())
            if enough is not None and enough(answer):
                answer.outcome = "cancelled"
                return


def _message(text: str) -> str:
    """Short message of an error body."""
    try:
        return str(parse_json(text)["error"]["message"])[:_SHOWN]
    except (ValueError, KeyError, TypeError):
        return text[:_SHOWN]
