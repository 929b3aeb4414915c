"""A real server on a real socket that executes a test's script, byte by byte."""

import asyncio
import contextlib
import functools
import inspect
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

import pytest
import uvloop

from loadgen.client import LoadClient
from loadgen.endpoint import Endpoint

READ = "read"  # wait for one whole request
CLOSE = "close"  # orderly
RESET = "reset"
HANG = "hang"  # until the client leaves
Step = bytes | float | str
Script = Sequence[Step]


class Scripted:
    """Connection k follows `scripts[k]` (the last script for all later ones); numbers are pauses [s].

    Attributes:
        requests: received requests, in order. left: set once the client has closed a connection.
    """

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.scripts = scripts
        self.requests: list[bytes] = []
        self.connections = 0
        self.left = asyncio.Event()
        self._came = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        try:
            for step in script:
                await self._step(step, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            await writer.wait_closed()

    async def until_requests(self, count: int) -> None:
        """Wait until this many have arrived."""
        while len(self.requests) < count:
            await asyncio.wait_for(self._came.wait(), 30)
            self._came.clear()

    async def _step(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if step == READ:
            await self._read(reader)
        elif step == HANG:
            while await reader.read(65536):
                pass
            self.left.set()
        elif step == CLOSE:
            writer.close()
        elif step == RESET:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        elif isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        else:
            await asyncio.sleep(float(step))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        self._came.set()


@contextlib.asynccontextmanager
async def scripted(*scripts: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Scripted]:
    """A server with one script per connection."""
    made = Scripted(scripts)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    made.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield made
    finally:
        server.close()


@contextlib.asynccontextmanager
async def client_of(url: str, *, verify_tls: bool = True, **settings: Any) -> AsyncIterator[LoadClient]:
    """A client whose run starts now; closed afterwards; asserts that no connection is left open."""
    endpoint = Endpoint(base_url=url, path="/v1/completions", model="m", verify_tls=verify_tls)
    client = LoadClient(endpoint, t0=monotonic(), **settings)
    try:
        yield client
    finally:
        await client.close()
        assert not client.running


_FACTORIES = [uvloop.new_event_loop, asyncio.new_event_loop]


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs twice, each time on a separate event loop."""

    @functools.wraps(test)
    def run(*args: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(*args, **fixtures))

    own = inspect.signature(test)
    factory = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), factory])  # type: ignore[attr-defined] # what pytest reads
    marked: Callable[..., None] = pytest.mark.parametrize("loop_factory", _FACTORIES, ids=["uvloop", "asyncio"])(run)
    return marked
