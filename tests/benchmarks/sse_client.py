"""Streaming clients: one that counts markers in raw bytes and so costs little CPU, and one that parses every event."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

_TEXT = b'"text":'
_TOKEN_IDS = b'"token_ids":['


@dataclass(slots=True)
class StreamRecord:
    """One stream's outcome. Times are of `time.perf_counter` [s]; `events` counts those that carry text."""

    sent_at: float
    first_at: float | None = None
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


async def chunks(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Parsed events of one `/v1/completions` stream."""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise RuntimeError(f"the stream failed: {chunk}")
                yield chunk


async def stream(host: str, port: int, body: dict[str, Any]) -> StreamRecord:
    """Send one `/v1/completions` request and count its stream's events to the end."""
    loop = asyncio.get_running_loop()
    marker = _TOKEN_IDS if body.get("return_token_ids") else _TEXT
    ended = loop.create_future()
    transport, protocol = await loop.create_connection(lambda: _Stream(marker, ended), host, port)
    protocol.record = record = StreamRecord(time.perf_counter())
    payload = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    try:
        transport.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
        await ended
    finally:
        transport.close()
    return record


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
        if found := seen.count(self._marker):
            record.events += found
            record.first_at = record.first_at or now
            seen = seen[seen.rindex(self._marker) + len(self._marker) :]
        record.tail = seen[-len(self._marker) + 1 :] if record.status == 200 else seen

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
