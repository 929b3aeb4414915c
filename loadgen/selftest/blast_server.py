"""A server with responses as fast, or as evenly paced, as configured: what a generator can be measured against.

    blast   tokens are written as fast as the connection takes them, one write each (or --burst in one)
    paced   every stream gets its first token after `--ttft-s` and then `--tokens-per-s`
    stall   paced, and the whole server pauses for `--stall-for-s`, `--stall-at-s` after the first request

It speaks /v1/completions, /v1/chat/completions, /v1/models, /health and a little /metrics, on raw asyncio (uvloop).
With `--slots N` only N requests are worked on at once, the others wait their turn.

The first line of its output is the port. It ends with SIGTERM, or with its input under `--end-with-stdin`.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import cast

import httptools
import uvloop

from loadgen.selftest.answers import RenderedAnswers, SelftestRefusedError, http_response, models_response, read_ask
from loadgen.selftest.streams import Server, Stream, StreamPace

# HTTP of the blast server: one protocol object per connection, requests served in order.


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


# A server with responses as fast, or as evenly paced, as configured: what a generator can be measured against.


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m loadgen.selftest.blast_server",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--mode", choices=("blast", "paced", "stall"), default="blast")
    parser.add_argument("--tokens-per-s", type=float, default=50.0, help="of each stream (paced, stall)")
    parser.add_argument("--ttft-s", type=float, default=0.0, help="from request to first token (paced, stall)")
    parser.add_argument("--lockstep", action="store_true", help="tokens of all streams at the same moments, as a batch")
    parser.add_argument("--stall-at-s", type=float, default=1.0, help="counted from the first request")
    parser.add_argument("--stall-for-s", type=float, default=2.0)
    parser.add_argument("--slots", type=int, help="requests worked on at once (default: all)")
    parser.add_argument("--burst", type=int, default=1, help="tokens (events) per write (blast, lockstep)")
    parser.add_argument("--chunk-bytes", type=int, default=250, help="size of an event with one token")
    parser.add_argument("--model", default="blast", help="the only model's name")
    parser.add_argument("--api-key", default="", help="demanded as bearer token if given")
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when the input is closed")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    """Serve until stopped.

    Effects: prints the port.
    """
    loop = asyncio.get_running_loop()
    paced = options.mode != "blast"
    pace = StreamPace(options.tokens_per_s, options.ttft_s, options.lockstep) if paced else None
    stall = (options.stall_at_s, options.stall_for_s) if options.mode == "stall" else None
    server = Server(
        loop,
        pace=pace,
        stall=stall,
        slots=options.slots,
        burst=options.burst,
        model=options.model,
        chunk_bytes=options.chunk_bytes,
        api_key=options.api_key,
    )
    sock = socket.create_server((options.host, options.port), backlog=4096)
    listener = await loop.create_server(lambda: ServerConnection(server), sock=sock)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if options.end_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _end_with_stdin, ended)
    print(sock.getsockname()[1], flush=True)
    await ended.wait()
    listener.close()


def _end_with_stdin(ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        ended.set()


def main() -> None:
    """Run."""
    options = parse()
    if options.core is not None:
        with contextlib.suppress(OSError, AttributeError):  # a core that is not ours, or no Linux
            os.sched_setaffinity(0, {options.core})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options))


if __name__ == "__main__":
    main()
