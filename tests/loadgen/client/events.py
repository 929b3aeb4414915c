"""Streams as servers send them, as bytes; and parsed requests as a client sent them."""

import json
from typing import Any

import httptools

DONE = b"data: [DONE]\n\n"


def event(fields: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(content: str, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    """A chunk of the completions protocol; `more` are fields of the chunk."""
    return event({"choices": [{"index": index, "text": content, "finish_reason": finish}], **more})


def delta(finish: str | None = None, index: int = 0, more: dict[str, Any] | None = None, **said: Any) -> bytes:
    """A chunk of the chat protocol; `said` are fields of the delta, `more` of the chunk."""
    return event({"choices": [{"index": index, "delta": said, "finish_reason": finish}], **(more or {})})


def usage(prompt: int, completion: int, **more: Any) -> bytes:
    """A usage chunk."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return event({"choices": [], "usage": counts})


def chunked(*events: bytes) -> bytes:
    """A whole streamed HTTP response."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(frame(e) for e in events) + b"0\r\n\r\n"


def frame(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain(body: bytes, status: int = 200, *headers: str, content_type: str = "application/json") -> bytes:
    """A whole HTTP response with a length."""
    lines = [f"HTTP/1.1 {status} X", f"content-type: {content_type}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHAT = (
    delta(role="assistant", content=""), delta(content="Once"), delta(content=" upon"), delta(finish="length"),
    usage(7, 2, prompt_tokens_details={"cached_tokens": 3}), DONE,
)  # fmt: skip
"""A short story."""


class _Reading:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        assert name.decode().lower() not in self.headers, f"{name!r} twice"
        self.headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def read_request(wire: bytes) -> tuple[dict[str, str], bytes]:
    """Headers (names in lower case) and body of exactly one request; its target is under ":target"."""
    reading = _Reading()
    httptools.HttpRequestParser(reading).feed_data(wire)
    assert reading.complete == 1
    return reading.headers | {":target": wire.split(b" ", 2)[1].decode()}, reading.body
