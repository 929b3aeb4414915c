"""Reads a server's streams with one of several HTTP clients, in a process of its own, and prints what it cost as JSON.

    python -m tests.benchmarks.stream_clients --client aiohttp --url http://127.0.0.1:8000 --model blast ...

Each does what load generators built on it do per chunk: split the events, decode the JSON, take the time. All run on
uvloop, with the garbage collector off.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvloop

from loadgen.endpoint import Backend, Endpoint
from loadgen.plan import Turn
from loadgen.selftest.ceiling import PROMPT, Ask, Ceiling, Streams, measure_client, no_collector

PATH = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json"}


class _Counting:
    """Tokens and their times, as far as any such tool takes them."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.text = ""
        self.tokens = 0

    def data(self, payload: bytes | str) -> None:
        """Take in the data of one event."""
        if payload in (b"[DONE]", "[DONE]"):
            return
        chunk = json.loads(payload)
        if chunk["choices"]:
            content = chunk["choices"][0]["delta"].get("content")
            if content:
                self.times.append(time.perf_counter())
                self.text += content
        elif chunk.get("usage"):
            self.tokens = chunk["usage"]["completion_tokens"]


def _body(endpoint: Endpoint, tokens: int) -> bytes:
    return endpoint.body(Turn(prompt=PROMPT, output_tokens=tokens))


@asynccontextmanager
async def with_aiohttp(endpoint: Endpoint) -> AsyncIterator[Ask]:
    """As `vllm bench serve` reads: `iter_any`, split at empty lines."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def ask(tokens: int) -> int:
            counting, rest, body = _Counting(), b"", _body(endpoint, tokens)
            async with session.post(endpoint.base_url + PATH, data=body, headers=HEADERS) as response:
                async for piece in response.content.iter_any():
                    *events, rest = (rest + piece).split(b"\n\n")
                    for event in events:
                        counting.data(event.removeprefix(b"data: "))
            return counting.tokens

        yield ask


@asynccontextmanager
async def with_httpx(endpoint: Endpoint) -> AsyncIterator[Ask]:
    """As most tools built on httpx read: `aiter_lines`."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=600) as client:

        async def ask(tokens: int) -> int:
            counting, body = _Counting(), _body(endpoint, tokens)
            async with client.stream("POST", endpoint.base_url + PATH, content=body, headers=HEADERS) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        counting.data(line.removeprefix("data: "))
            return counting.tokens

        yield ask


OTHERS = {"aiohttp": with_aiohttp, "httpx": with_httpx}


async def measure(options: argparse.Namespace) -> Ceiling:
    """Measure the client asked for."""
    endpoint = Endpoint(base_url=options.url, path=PATH, model=options.model, backend=Backend.CHAT)
    shape: dict[str, Any] = {"streams": options.streams, "tokens_per_answer": 256}
    if options.client == "loadgen":
        return await measure_client(endpoint, seconds=options.seconds, **shape)
    async with OTHERS[options.client](endpoint) as ask:
        return await Streams(ask, **shape).measure(options.seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", choices=("loadgen", *OTHERS), required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--core", type=int, help="run on this core only")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    with no_collector(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(msgspec.json.encode(runner.run(measure(options))).decode(), flush=True)


if __name__ == "__main__":
    main()
