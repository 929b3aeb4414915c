"""Parsed requests and rendered responses for the blast server; pure.

The parts of a response that do not depend on the request are rendered before the first request: a chunk is then one
write of existing bytes. A content chunk has the size of a real server's (250 bytes by default), one token in it.
"""

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON

WORD = " word"
_STATUS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}
_STATUS |= {413: "Content Too Large", 415: "Unsupported Media Type"}


class SelftestStreamOptions(msgspec.Struct):
    """Content of a stream."""

    include_usage: bool | None = None


class SelftestMessage(msgspec.Struct):
    """One message; content in parts is not known here."""

    role: str
    content: str | None = None


class SelftestRequest(msgspec.Struct):
    """A request as far as it is honoured; types are checked, unknown fields ignored."""

    model: str
    prompt: str | list[int] | None = None
    messages: list[SelftestMessage] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: SelftestStreamOptions | None = None
    temperature: float | None = None
    logit_bias: dict[str, float] | None = None

    @property
    def output_tokens(self) -> int:
        """Length of the response."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return 16 if limit is None else limit

    @property
    def input_tokens(self) -> int:
        """Token ids, or words of a text."""
        if isinstance(self.prompt, list):
            return len(self.prompt)
        texts = [self.prompt or ""] if self.messages is None else [m.content or "" for m in self.messages]
        return sum(len(text.split()) for text in texts)

    @property
    def wants_usage(self) -> bool:
        """Whether the stream is to end with usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class SelftestRefusedError(Exception):
    """A request that is refused with a specific HTTP status."""

    def __init__(self, status: int, text: str, code: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.code = code

    def response(self) -> bytes:
        """The whole HTTP response."""
        error = {"message": str(self), "type": "invalid_request_error", "param": None, "code": self.code}
        return http_response(msgspec.json.encode({"error": error}), self.status)


def read_ask(body: bytes, content_type: str, *, chat: bool, model: str) -> SelftestRequest:
    """Understand a request's body.

    Raises: RefusedError: 415 not JSON by name, 400 not JSON or not valid, 404 unknown model.
    """
    if content_type.partition(";")[0].strip().lower() not in ("application/json", ""):
        raise SelftestRefusedError(415, f"content type {content_type} is not supported")
    try:
        body.decode()  # unknown fields are skipped unread, yet must be text
        ask = json_text.decode(body, SelftestRequest)
    except NOT_JSON as error:
        raise SelftestRefusedError(400, f"{error}") from error
    if ask.model != model:
        raise SelftestRefusedError(404, f"The model `{ask.model}` does not exist.", "model_not_found")
    if not (ask.messages if chat else ask.prompt):
        raise SelftestRefusedError(400, f"{'messages' if chat else 'prompt'} must be given")
    if ask.output_tokens < 1:
        raise SelftestRefusedError(400, f"max_tokens must be at least 1, got {ask.output_tokens}")
    return ask


class RenderedAnswers:
    """Response parts rendered before any request, for one protocol."""

    def __init__(self, *, chat: bool, model: str, chunk_bytes: int) -> None:
        """Render.

        Args:
            chunk_bytes: length of one content event, HTTP's own framing not counted; short ones are filled up.
        """
        self._chat = chat
        self._model = model
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._shared = {"id": "chatcmpl-blast" if chat else "cmpl-blast", "object": kind, "created": 1_700_000_000}
        self._shared |= {"model": model}
        bare = len(self._content(None, ""))
        self._filling = "x" * max(0, chunk_bytes - bare - len(b"data: \n\n"))
        self.content = _framed(self._content(None, self._filling))
        self.last_content = _framed(self._content("length", self._filling))
        opening = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        self.opening = _framed(msgspec.json.encode(self._shared | opening)) if chat else b""
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
        self._head = f"{head}transfer-encoding: chunked\r\n".encode()
        self._end = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    def head(self, request_id: bytes) -> bytes:
        """First bytes of a stream; ends before the first token."""
        return b"%bx-request-id: %b\r\n\r\n%b" % (self._head, request_id, self.opening)

    def tail(self, ask: SelftestRequest, output_tokens: int) -> bytes:
        """Last bytes of a stream, after the last token."""
        if not ask.wants_usage:
            return self._end
        usage = {"choices": [], "usage": _usage(ask, output_tokens)}
        return _framed(msgspec.json.encode(self._shared | usage)) + self._end

    def whole(self, ask: SelftestRequest, request_id: bytes) -> bytes:
        """The HTTP response to a request without streaming."""
        text = WORD * ask.output_tokens
        choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        kind = "chat.completion" if self._chat else "text_completion"
        fields = self._shared | {"object": kind, "choices": [choice], "usage": _usage(ask, ask.output_tokens)}
        return http_response(msgspec.json.encode(fields), 200, request_id=request_id)

    def _content(self, finish_reason: str | None, filling: str) -> bytes:
        said: dict[str, object] = {"delta": {"content": WORD}} if self._chat else {"text": WORD, "logprobs": None}
        choice = {"index": 0, **said, "finish_reason": finish_reason}
        return msgspec.json.encode(self._shared | {"system_fingerprint": filling, "choices": [choice]})


def http_response(
    body: bytes, status: int = 200, *, content_type: str = "application/json", request_id: bytes = b""
) -> bytes:
    """One complete response."""
    head = f"HTTP/1.1 {status} {_STATUS[status]}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    named = b"x-request-id: %b\r\n" % request_id if request_id else b""
    return head.encode() + named + b"\r\n" + body


def models_response(model: str) -> bytes:
    """The response of /v1/models."""
    card = {"id": model, "object": "model", "created": 1_700_000_000, "owned_by": "loadgen", "root": model}
    return http_response(msgspec.json.encode({"object": "list", "data": [card | {"max_model_len": 1_000_000}]}))


def _framed(event: bytes) -> bytes:
    data = b"data: %b\n\n" % event
    return b"%x\r\n%b\r\n" % (len(data), data)


def _usage(ask: SelftestRequest, output_tokens: int) -> dict[str, object]:
    total = ask.input_tokens + output_tokens
    usage: dict[str, object] = {"prompt_tokens": ask.input_tokens, "completion_tokens": output_tokens}
    return usage | {"total_tokens": total, "prompt_tokens_details": {"cached_tokens": 0}}
