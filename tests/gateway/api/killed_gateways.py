"""Gateways as processes of their own over one Redis: each is killed while it generates, and another one continues.

The backend is a fake that says a seeded text, cut differently in every process. A client streams the response from the
gateway that accepted it, loses its connection with it, and goes on at the other gateway after the last event it has. Or
it uploads a batch, whose gateways are killed.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn

from serving.gateway.api.app import create_app
from serving.gateway.api.batches.files import FileShelf
from serving.gateway.api.batches.shelf import BatchShelf, state_of_item
from serving.gateway.api.responses.background_runs import BackgroundRuns
from serving.gateway.api.responses.resumption import payload_of
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.core.batches import BatchLimits
from serving.gateway.core.kept_responses import KeepLimits
from serving.gateway.core.work_items import WorkItem, WorkLimits
from serving.gateway.live.batch_runner import BatchRunner
from serving.gateway.live.redis_responses import RedisResponseStore
from serving.gateway.live.redis_work import RedisWorkStore
from serving.gateway.live.running_batch import BatchHost
from serving.telemetry.metrics import GatewayMetrics
from serving.values.sequence import SequenceSpec
from tests.fakes.backend import FakeBackend, Script
from tests.gateway.api.client import until
from tests.gateway.api.support import EOS

LENGTH = 150
"""Tokens of a response."""
LIMITS = WorkLimits(lease_s=1.0)
_SETTING = "[kvcache] directory"
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])  # a process starts quickly, and inherits no threads of the tests


def said(spec: SequenceSpec, per_update: int = 1) -> Script:
    """The tokens that a prompt and a seed give, in any gateway."""
    chance = random.Random(f"{spec.prompt} {spec.sampling.seed}")
    return Script((*tokens_of(chance), EOS), per_update=per_update, delay_s=chance.uniform(0.005, 0.02))


def tokens_of(chance: random.Random) -> list[int]:
    return [chance.randrange(4, 260) for _ in range(LENGTH)]


def work_store(kind: str, url: str) -> RedisWorkStore:
    return RedisWorkStore(kind, url, LIMITS, _SETTING, 20.0)


def batch_shelf(url: str) -> BatchShelf:
    return BatchShelf(work_store("batch", url), FileShelf(work_store("file", url), 1 << 20), time.time)


def serve(folder: Path, url: str, listener: socket.socket, cut: int, stuck: float) -> None:
    """Run one gateway until it is killed. Requests with a seed from `stuck` on never end."""
    model = model_in(folder)

    def script(spec: SequenceSpec) -> Script:
        return replace(said(spec, cut), hang_after=3 if spec.sampling.seed >= stuck else None)

    async def run() -> None:
        runs = BackgroundRuns(work_store("response", url), poll_s=0.02)
        responses = RedisResponseStore(url, KeepLimits(), _SETTING, 20.0)
        metrics = GatewayMetrics(model.names[0], max_model_len=model.max_model_len)
        backend, shelf = FakeBackend(script), batch_shelf(url)
        app = create_app(backend, model, ApiSettings(), metrics, responses=responses, background=runs, batches=shelf)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", ws="none"))
        host = BatchHost(str(os.getpid()), app, lambda _: b"", lambda: False, 60.0, time.time)
        tasks = [runs.watch(0.1), BatchRunner(shelf, host, BatchLimits()).run(), server.serve([listener])]
        await asyncio.gather(*tasks)

    asyncio.run(run())


@dataclass
class Gateway:
    """One process."""

    process: ForkServerProcess
    url: str

    @classmethod
    def started(cls, folder: Path, redis_url: str, cut: int, stuck: float = inf) -> Self:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            process = _SERVER.Process(target=serve, args=(folder, redis_url, listener, cut, stuck))
            process.start()
        return cls(process, url)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.process.kill()
        self.process.join(20)


@dataclass
class Outcome:
    """One response.

    Args:
        before: events that the client had when its gateway was killed.
    """

    events: list[Any] = field(default_factory=list)
    before: int = 0

    @property
    def text(self) -> str:
        return "".join(event.get("delta", "") for event in self.events)

    def check(self, model: ServedModel, seed: int, prompt: tuple[int, ...]) -> None:
        """Raises: AssertionError if an event is lost or doubled, or the text is another one."""
        assert [event["sequence_number"] for event in self.events] == list(range(len(self.events)))
        last = self.events[-1]
        assert last["type"] == "response.completed", last
        chance = random.Random(f"{prompt} {seed}")
        text = model.tokenizer.decode(tokens_of(chance))
        assert self.text == text
        [item] = last["response"]["output"]
        assert item["content"][0]["text"] == text
        kinds = [event["type"] for event in self.events if not event["type"].endswith(("delta", "in_progress"))]
        assert len(kinds) == len(set(kinds)), "each other event comes once"


async def read(outcome: Outcome, method: str, url: str, **asked: Any) -> None:
    """Add the events of one stream until it ends or breaks."""
    with contextlib.suppress(httpx.TransportError):
        async with httpx.AsyncClient(timeout=60) as client, client.stream(method, url, **asked) as reply:
            assert reply.status_code == 200, await reply.aread()
            rest = b""
            async for piece in reply.aiter_bytes():  # not lines: httpx also splits them at U+0085 and the like
                *whole, rest = (rest + piece).split(b"\n\n")
                outcome.events += [payload_of(event) for event in whole]


async def one_round(first: Gateway, second: Gateway, after: int, seeds: Sequence[int]) -> list[Outcome]:
    """Responses, one per seed, whose first gateway is killed when their clients have so many events together."""
    outcomes = [Outcome() for _ in seeds]
    asked = {"input": "hi", "background": True, "stream": True, "temperature": 1.0}
    reading = asyncio.gather(
        *(
            read(outcome, "POST", f"{first.url}/v1/responses", json={**asked, "seed": seed})
            for outcome, seed in zip(outcomes, seeds, strict=True)
        )
    )
    await until(
        lambda: (
            reading.done() or (all(one.events for one in outcomes) and sum(len(o.events) for o in outcomes) >= after)
        )
    )
    await asyncio.to_thread(first.kill)
    await reading
    await asyncio.gather(*(go_on(outcome, second) for outcome in outcomes))
    return outcomes


async def go_on(outcome: Outcome, gateway: Gateway) -> None:
    """Read the rest of a response at another gateway, and then all of it."""
    outcome.before = len(outcome.events)
    name = outcome.events[0]["response"]["id"]
    while not outcome.events[-1]["type"].endswith("completed"):
        query = f"stream=true&starting_after={outcome.events[-1]['sequence_number']}"
        await read(outcome, "GET", f"{gateway.url}/v1/responses/{name}?{query}")
    again = Outcome()
    await read(again, "GET", f"{gateway.url}/v1/responses/{name}?stream=true")
    assert again.events == outcome.events, "what the client has is what is stored"


def rounds(folder: Path, redis_url: str, count: int, seed: int, at_once: int = 1) -> list[Outcome]:
    """Responses by gateways that are killed.

    Args:
        folder: of the model.
        count: gateways that are killed.
        at_once: responses that each of them generates then.
    Raises: AssertionError at the first event that is lost or doubled.
    """
    chance, model = random.Random(seed), model_in(folder)
    prompt = tuple(model.tokenizer.encode("<|bos|><|user|>user: hi<|assistant|>", add_special_tokens=False))
    outcomes, gateways = [], [Gateway.started(folder, redis_url, 1)]
    try:
        for number in range(count):
            gateways.append(Gateway.started(folder, redis_url, chance.randint(1, 7)))
            first = gateways.pop(0)
            seeds = [(seed * 1000 + number) * 100 + index for index in range(at_once)]
            after = chance.randint(at_once, at_once * LENGTH // 8)
            found = asyncio.run(one_round(first, gateways[0], after, seeds))
            for outcome, one in zip(found, seeds, strict=True):
                outcome.check(model, one, prompt)
            outcomes += found
    finally:
        for gateway in gateways:
            gateway.kill()
    return outcomes


def run_batch(folder: Path, redis_url: str, kills: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Run a batch, and kill this number of gateways, one after the other, while they run it.

    Returns: id and text of each result, in order of the seeds, and what they should be.
    """
    lines, model = LINES_PER_GATEWAY * (kills + 1), model_in(folder)
    found = asyncio.run(_results(folder, redis_url, lines))
    prompt = tuple(model.tokenizer.encode(BATCH_LINE["prompt"], add_special_tokens=True))
    texts = [(one["custom_id"], one["response"]["body"]["choices"][0]["text"]) for one in found]
    drawn = [tokens_of(random.Random(f"{prompt} {seed}"))[: BATCH_LINE["max_tokens"]] for seed in range(lines)]
    expected = [(f"c{seed}", model.tokenizer.decode(tokens)) for seed, tokens in enumerate(drawn)]
    return sorted(texts, key=lambda one: int(one[0][1:])), expected


async def _results(folder: Path, redis_url: str, lines: int) -> list[Any]:
    """Lines of the output file of a batch. Each gateway but the last is killed after some lines, amid others."""
    asked = [
        {"custom_id": f"c{seed}", "method": "POST", "url": "/v1/completions", "body": {**BATCH_LINE, "seed": seed}}
        for seed in range(lines)
    ]
    text = "".join(f"{json.dumps(one)}\n" for one in asked)
    store, done = work_store("batch", redis_url), 0
    gateway = Gateway.started(folder, redis_url, 1, stuck=LINES_PER_GATEWAY)

    async def reached(condition: Callable[[WorkItem], bool]) -> WorkItem:
        while (item := await store.get("default", name)) is None or not condition(item):  # noqa: ASYNC110 - as clients
            await asyncio.sleep(0.02)
        return item

    try:
        async with asyncio.timeout(120), httpx.AsyncClient(timeout=60) as client:
            sent = {"files": {"file": ("in", text.encode())}, "data": {"purpose": "batch"}}
            uploaded = (await client.post(f"{gateway.url}/v1/files", **sent)).json()  # type: ignore[arg-type]
            body = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
            name = (await client.post(f"{gateway.url}/v1/batches", json=body)).json()["id"]
            for first in range(LINES_PER_GATEWAY, lines, LINES_PER_GATEWAY):
                item = await reached(lambda item, done=done: state_of_item(item).completed >= done + 4)  # type: ignore[misc]
                assert not item.done
                await asyncio.to_thread(gateway.kill)
                done, end = first, inf if first + LINES_PER_GATEWAY == lines else first + LINES_PER_GATEWAY
                gateway = Gateway.started(folder, redis_url, 2, stuck=end)
            await reached(lambda item: item.done)
            await store.close()
            batch = (await client.get(f"{gateway.url}/v1/batches/{name}")).json()
            assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}
            output = await client.get(f"{gateway.url}/v1/files/{batch['output_file_id']}/content")
            return [json.loads(one) for one in output.content.splitlines()]
    finally:
        gateway.kill()


LINES_PER_GATEWAY = 12
BATCH_LINE: dict[str, Any] = {"prompt": "hi", "max_tokens": 30, "temperature": 1.0}


def model_in(folder: Path) -> ServedModel:
    """The tiny model."""
    return ServedModel.from_folder(folder, names=("tiny",), max_model_len=512, created=7)
