"""HTTP of the blast server: one protocol object per connection, requests served in order."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import httptools

from loadgen.selftest.answers import RenderedAnswers, SelftestRefusedError, http_response, models_response, read_ask
from loadgen.selftest.streams import Server, Stream


class ServerConnection(asyncio.Protocol):
    """Reads requests, starts streams."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._stream: Stream | None = None
        self._target = b""
        self._body: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Disable delays, so that every chunk is sent immediately."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            assert self._transport is not None
            self._transport.write(SelftestRefusedError(400, "not HTTP/1.1").response())
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, perhaps in the middle of its stream."""
        if self._stream is not None:
            self._server.leave(self._stream)
            self._stream = None

    def pause_writing(self) -> None:
        """The client reads slower than we write."""
        if self._stream is not None:
            self._stream.paused = True

    def resume_writing(self) -> None:
        """Continue writing: the client has caught up."""
        if self._stream is not None:
            self._server.resume(self._stream)

    # -- called by the parser --

    def on_message_begin(self) -> None:
        """A new request."""
        self._target = b""
        self._body = []
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Respond to the request."""
        assert self._transport is not None
        try:
            response = self._answer(self._parser.get_method(), self._target.partition(b"?")[0])
        except SelftestRefusedError as error:
            response = error.response()
        if response is not None:
            self._transport.write(response)

    def _answer(self, method: bytes, path: bytes) -> bytes | None:
        """The response; None when a stream was started.

        Raises: RefusedError.
        """
        server = self._server
        if server.api_key and self._headers.get(b"authorization") != b"Bearer " + server.api_key.encode():
            raise SelftestRefusedError(401, "the API key is missing or wrong", "invalid_api_key")
        if method == b"GET":
            page = _PAGES.get(path)
            if page is None:
                raise SelftestRefusedError(404, f"no such page: {path.decode(errors='replace')}")
            return page(server)
        answers = {b"/v1/completions": server.completions, b"/v1/chat/completions": server.chat}.get(path)
        if answers is None or method != b"POST":
            raise SelftestRefusedError(404 if answers is None else 405, "no such route or method")
        self._begin(answers)
        return None

    def _begin(self, answers: RenderedAnswers) -> None:
        assert self._transport is not None
        if self._stream is not None:
            raise SelftestRefusedError(400, "pipelined requests are not served")
        content_type = self._headers.get(b"content-type", b"").decode("latin-1")
        server = self._server
        ask = read_ask(b"".join(self._body), content_type, chat=answers is server.chat, model=server.model)
        request_id = self._headers.get(b"x-request-id", b"none")
        self._stream = Stream(ask, answers, request_id, self._transport.write, self._forget)
        server.begin(self._stream)

    def _forget(self) -> None:
        self._stream = None


_PAGES: dict[bytes, Callable[[Server], bytes]] = {
    b"/health": lambda server: http_response(b"", content_type="text/plain"),
    b"/v1/models": lambda server: models_response(server.model),
    b"/metrics": lambda server: http_response(
        server.metrics().encode(), content_type="text/plain; version=0.0.4; charset=utf-8"
    ),
}
