"""CPU of the HTTP surface per streamed token: `python -m tests.benchmarks.bench_api_stream [--streams 64] ...`.

A server process runs the application over a backend that moves all streams by one token per step, paced, as one token
frame of an engine would; a client process reads and counts events. Printed is the server process's CPU time (user and
system) per token between two moments at which all streams run, so request set-up and tear-down are outside.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn

from serving.gateway.api.app import create_app
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.ids import SequenceId
from serving.telemetry.metrics import GatewayMetrics
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.news import Tokens
from tests.gateway.api.support import SENTENCES, write_model_folder

_ANY = SequenceId("")
"""The HTTP side does not ask which sequence it was."""


class PacedGeneration:
    """One stream: a list of updates and the future of whoever waits for them."""

    def __init__(self, backend: "PacedBackend") -> None:
        self.replicas: Sequence[str] = ()
        self._backend = backend
        self._updates: list[SequenceUpdate] = []
        self._waiter: asyncio.Future[None] | None = None

    def deliver(self, update: SequenceUpdate) -> None:
        self._updates.append(update)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Sequence[SequenceUpdate]:
        if not self._updates:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        updates, self._updates = self._updates, []
        return updates

    def stop(self, index: int) -> None:
        self.cancel()

    def cancel(self) -> None:
        self._backend.streams.discard(self)

    def answered(self, answered: object) -> None:
        """Ignore: time lines are not kept here."""


class PacedBackend:
    """Every `step_s` all streams get one token; counts the tokens delivered."""

    def __init__(self, tokens: list[int], step_s: float) -> None:
        self.streams: set[PacedGeneration] = set()
        self.delivered = 0
        self._tokens = tokens
        self._step_s = step_s

    def submit(self, job: GenerationJob) -> PacedGeneration:
        stream = PacedGeneration(self)
        self.streams.add(stream)
        return stream

    def ready(self) -> bool:
        return True

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due, step = loop.time(), 0
        while True:
            due += self._step_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            update = SequenceUpdate(0, Tokens(_ANY, step, (self._tokens[step % len(self._tokens)],)))
            step += 1
            for stream in list(self.streams):
                stream.deliver(update)
            self.delivered += len(self.streams)


def serve(pipe: Connection, streams: int, step_s: float, seconds: float) -> None:
    """Server process: sends its port, then the measurement."""
    folder = write_model_folder(Path(tempfile.mkdtemp()))
    model = ServedModel.from_folder(folder, names=("tiny",), max_model_len=10**6, created=0)
    tokens = model.tokenizer.encode(" ".join(SENTENCES), add_special_tokens=False)
    backend = PacedBackend(tokens, step_s)
    app = create_app(backend, model, ApiSettings(), GatewayMetrics("tiny"))
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", ws="none")

    async def measure() -> None:
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve([listener]))
        stepping = asyncio.ensure_future(backend.run())
        while len(backend.streams) < streams:  # noqa: ASYNC110 - an event would be set on the measured path
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        cpu, wall, delivered = time.process_time(), time.perf_counter(), backend.delivered
        await asyncio.sleep(seconds)
        cpu, wall, delivered = (
            time.process_time() - cpu,
            time.perf_counter() - wall,
            backend.delivered - delivered,
        )
        pipe.send((cpu, wall, delivered, len(backend.streams)))
        stepping.cancel()
        pipe.send(backend.delivered)
        await asyncio.sleep(0.2)  # what is on its way arrives
        serving.cancel()
        await asyncio.gather(stepping, serving, return_exceptions=True)

    pipe.send(listener.getsockname()[1])
    asyncio.Runner(loop_factory=config.get_loop_factory()).run(measure())


def read_streams(pipe: Connection, port: int, streams: int, fields: dict[str, Any]) -> None:
    """Client process: opens all streams and counts the events that come until the server closes them."""
    events = 0
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "tiny", "stream": True, "messages": messages, "ignore_eos": True, **fields}
    payload = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(payload)}\r\n\r\n"
    )

    async def one() -> None:
        nonlocal events
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + payload)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                events += line.startswith(b"data: {")

    async def all_streams() -> None:
        await asyncio.gather(*(one() for _ in range(streams)))

    asyncio.run(all_streams())
    pipe.send(events)


def main() -> None:
    """Run and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--fields", type=json.loads, default={}, help='more request fields, as JSON: {"stop": ["x"]}')
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    received, counted = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(theirs, options.streams, options.step_ms / 1e3, options.seconds))
    server.start()
    client = context.Process(target=read_streams, args=(counted, ours.recv(), options.streams, options.fields))
    client.start()
    cpu, wall, delivered, streams = ours.recv()
    all_delivered = ours.recv()
    server.join()
    events = received.recv()
    client.join()
    per_token, busy = cpu / delivered * 1e6, cpu / wall
    print(
        f"{per_token:.1f} us CPU per streamed token | {streams} streams, one token each per "
        f"{options.step_ms:g} ms, {delivered} tokens in {wall:.1f} s, server at {busy:.0%} of one core | "
        f"chat, uvicorn {uvicorn.__version__} + uvloop + httptools, Python {sys.version.split()[0]}, "
        f"client read {events} events of {all_delivered} tokens in the whole run | "
        f"{os.cpu_count()} cores, fields {json.dumps(options.fields)}, load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
