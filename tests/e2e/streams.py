"""Clients that read streams, and some that disconnect in the middle."""

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.server import PATIENCE_S, Server
from tests.live.workload import Ask, Reference
from tests.virtual.core.outcome import Seen


def order(ask: Ask, *, stream: bool = False, model: str = "tiny") -> dict[str, Any]:
    """A greedy request as a body of `/v1/completions`."""
    return {
        "model": model,
        "prompt": list(ask.prompt),
        "max_tokens": ask.sampling.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": stream,
        "n": ask.n,
    }


@dataclass
class Stream:
    """One streaming request and its progress."""

    ask: Ask
    tokens: list[int]
    finish: str | None = None

    def follows(self, reference: Reference) -> bool:
        """Whether every token arrived exactly once and is correct."""
        return self.finish == "length" and reference.confirms(self.ask.prompt, self.ask.sampling, self.tokens)


class Streams:
    """Several streams at once, on one event loop."""

    def __init__(self, server: Server, asks: list[Ask], model: str = "tiny") -> None:
        self.streams = [Stream(ask, []) for ask in asks]
        self._server = server
        self._model = model
        self._begun = asyncio.Event()
        self._enough: Callable[[Iterable[object]], bool] = all

    def seen(self, resumed: int) -> Seen:
        """Results of the clients.

        Args:
            resumed: as the gateway counted; see `resumptions`.
        """
        finished = sum(stream.finish == "length" for stream in self.streams)
        return Seen(finished, len(self.streams) - finished, resumed, sum(len(stream.tokens) for stream in self.streams))

    @property
    def done(self) -> bool:
        """Whether every stream has finished."""
        return all(stream.finish is not None for stream in self.streams)

    async def start(self, *, first_only: bool = False) -> "asyncio.Task[None]":
        """Start reading; return as soon as every stream has produced output, or any with `first_only`."""
        self._enough = any if first_only else all
        running = asyncio.create_task(self.run())
        begun = asyncio.create_task(self._begun.wait())
        await asyncio.wait({running, begun}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        assert not self.done, "all have ended already"
        return running

    async def run(self) -> None:
        """Read all streams to their ends."""
        headers = {"Authorization": f"Bearer {self._server.key}"} if self._server.key else {}
        async with httpx.AsyncClient(base_url=self._server.url, headers=headers, timeout=PATIENCE_S) as client:
            await asyncio.gather(*(self._read(client, stream) for stream in self.streams))

    async def _read(self, client: httpx.AsyncClient, stream: Stream) -> None:
        body = order(stream.ask, stream=True, model=self._model)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                for choice in chunk["choices"]:
                    stream.tokens += choice.get("token_ids") or []
                    stream.finish = choice["finish_reason"] or stream.finish
                if self._enough(other.tokens for other in self.streams):
                    self._begun.set()


def resumptions(server: Server) -> int:
    """How often choices went on elsewhere so far."""
    counted = re.findall(r"^cloudmatrix:resumptions_total{.*} (\S+)$", server.get("/metrics"), re.M)
    return round(sum(map(float, counted)))


async def fickle_request(port: int, rng: random.Random, *, leave: bool) -> str:
    """One raw HTTP request; with `leave`, the connection is cut at a random moment.

    Returns: `done`, `left`, or `failed: ...` with the reason.
    """
    body = order(Ask(tuple(rng.randrange(320) for _ in range(rng.randrange(1, 120)))), stream=rng.random() < 0.7)
    body |= {"max_tokens": rng.randrange(1, 12), "n": rng.choice((1, 1, 1, 2))}
    raw = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        sent = f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + raw
        if leave and rng.random() < 0.2:  # in the middle of its own request
            writer.write(sent[: rng.randrange(len(sent))])
            await asyncio.sleep(rng.uniform(0, 0.05))
            return "left"
        writer.write(sent)
        if leave:
            return await _leave(reader, rng)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        complete = answer.startswith(b"HTTP/1.1 200") and answer.count(b'"finish_reason":"') == body["n"]
        return "done" if complete else f"failed: {answer[:300]!r}"
    finally:
        if leave and rng.random() < 0.5:
            writer.transport.abort()  # a reset, as from a process that was killed
        writer.close()


async def _leave(reader: asyncio.StreamReader, rng: random.Random) -> str:
    """Stay connected for a random time or a random number of bytes."""
    if rng.random() < 0.5:
        await asyncio.sleep(rng.uniform(0, 0.3))
    else:
        await asyncio.wait_for(reader.read(rng.randrange(1, 600)), PATIENCE_S)
    return "left"
