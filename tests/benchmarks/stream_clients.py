"""Reads a server's streams with our client or with aiohttp's, in a process of its own; prints what it cost as JSON.

    python -m tests.benchmarks.stream_clients CLIENT URL MODEL STREAMS SECONDS CORE

The aiohttp one does what load generators built on it do per chunk, as `vllm bench serve`: take what has arrived, split
the events, decode the JSON, take the time. Both run on uvloop, with the garbage collector off.
"""

import asyncio
import json
import os
import sys
import time

import aiohttp
import msgspec
import uvloop

from loadgen.endpoint import Backend, Endpoint
from loadgen.plan import Turn
from loadgen.selftest.ceiling import PROMPT, Ceiling, Streams, measure_client, no_collector

PATH = "/v1/chat/completions"
CLIENTS = ("loadgen", "aiohttp")
TOKENS = 256


class Counting:
    """Tokens and their times, as far as any such tool takes them."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.text = ""
        self.tokens = 0

    def data(self, payload: bytes) -> None:
        """Take in the data of one event."""
        if payload == b"[DONE]":
            return
        chunk = json.loads(payload)
        if chunk["choices"]:
            if content := chunk["choices"][0]["delta"].get("content"):
                self.times.append(time.perf_counter())
                self.text += content
        elif chunk.get("usage"):
            self.tokens = chunk["usage"]["completion_tokens"]


async def measure_aiohttp(endpoint: Endpoint, streams: int, seconds: float) -> Ceiling:
    """Measure the client of other tools."""
    connector, limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=limit, headers=headers) as session:

        async def ask(tokens: int) -> int:
            counting, rest = Counting(), b""
            body = endpoint.body(Turn(prompt=PROMPT, output_tokens=tokens))
            async with session.post(endpoint.base_url + PATH, data=body) as response:
                async for piece in response.content.iter_any():
                    *events, rest = (rest + piece).split(b"\n\n")
                    for event in events:
                        counting.data(event.removeprefix(b"data: "))
            return counting.tokens

        return await Streams(ask, streams=streams, tokens_per_answer=TOKENS).measure(seconds)


def main(client: str, url: str, model: str, streams: int, seconds: float, core: int) -> None:
    """Measure and print."""
    os.sched_setaffinity(0, {core})
    endpoint = Endpoint(base_url=url, path=PATH, model=model, backend=Backend.CHAT)
    if client == "loadgen":
        measuring = measure_client(endpoint, seconds=seconds, streams=streams, tokens_per_answer=TOKENS)
    else:
        measuring = measure_aiohttp(endpoint, streams, seconds)
    with no_collector(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(msgspec.json.encode(runner.run(measuring)).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]), int(sys.argv[6]))
