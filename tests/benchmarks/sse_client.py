"""A streaming client that costs little: one asyncio protocol per request, counting markers in the raw bytes.

A real client parses every event; on a machine with two cores that would take time from the server that is measured.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_TEXT = b'"text":'
_TOKEN_IDS = b'"token_ids":['


@dataclass(slots=True)
class StreamRecord:
    """What one stream did. Times are of `time.perf_counter` [s]; `events` counts those that carry text."""

    sent_at: float
    first_at: float | None = None
    ended_at: float | None = None
    events: int = 0
    status: int = 0
    tail: bytes = field(default=b"", repr=False)

    @property
    def ttft_s(self) -> float:
        """Request sent to first token received."""
        assert self.first_at is not None, f"the stream brought no token (status {self.status}): {self.tail!r}"
        return self.first_at - self.sent_at


def completion(model: str, prompt: str | Sequence[int], max_tokens: int, **more: Any) -> dict[str, Any]:
    """Body of a greedy streaming completion that always gives `max_tokens` tokens."""
    body = {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": max_tokens}
    return body | {"stream": True, "temperature": 0, "ignore_eos": True} | more


async def stream(host: str, port: int, body: dict[str, Any], *, marker: bytes | None = None) -> StreamRecord:
    """Send one `/v1/completions` request and read its stream to the end.

    Args:
        marker: bytes that stand once in each event of interest; by default those around a text, or around token ids
            where the body asks for them.
    Raises: OSError if nobody listens.
    """
    loop = asyncio.get_running_loop()
    marker = marker or (_TOKEN_IDS if body.get("return_token_ids") else _TEXT)
    ended = loop.create_future()
    transport, _ = await loop.create_connection(lambda: _Stream(marker, ended), host, port)
    record = StreamRecord(time.perf_counter())
    protocol = transport.get_protocol()
    assert isinstance(protocol, _Stream)
    protocol.record = record
    try:
        transport.write(request_bytes("/v1/completions", body))
        await ended
    finally:
        transport.close()
    return record


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    """A whole HTTP request that closes its connection afterwards."""
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload


class _Stream(asyncio.Protocol):
    """Counts markers; a marker cut by a read is found with the next one."""

    def __init__(self, marker: bytes, ended: "asyncio.Future[None]") -> None:
        self.record: StreamRecord | None = None
        self._marker = marker
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        now, record = time.perf_counter(), self.record
        assert record is not None, "bytes before the request was sent"
        if not record.status:
            record.status = int(data.split(b" ", 2)[1])
        seen = record.tail + data
        found = seen.count(self._marker)
        if found:
            record.events += found
            record.first_at = record.first_at or now
            seen = seen[seen.rindex(self._marker) + len(self._marker) :]
        record.tail = seen[-len(self._marker) + 1 :] if record.status == 200 else seen

    def connection_lost(self, exc: Exception | None) -> None:
        if self.record is not None:
            self.record.ended_at = time.perf_counter()
        if not self._ended.done():
            self._ended.set_result(None)
