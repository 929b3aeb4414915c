"""Gateways over scripted backends that share a store of batches, in virtual time."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, cast

import httpx

from serving.gateway.api.batches.files import FileShelf
from serving.gateway.api.batches.shelf import BatchShelf
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.work_store import MemoryWorkStore, WorkStore
from serving.gateway.core.batches import BatchLimits
from serving.gateway.live.batch_runner import BatchRunner
from serving.gateway.live.running_batch import BatchHost
from tests.fakes.virtual_loop import VirtualLoop
from tests.gateway.api.support import Harness, requested

Json = dict[str, Any]
COMPLETIONS = "/v1/completions"


def line(custom_id: str, url: str = COMPLETIONS, **body: Any) -> Json:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "tiny", "prompt": "hi", **body}}


def jsonl(lines: list[Json]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


class FrailStore:
    """A `WorkStore` as one gateway sees it. While `away`, calls wait, so a gateway does nothing more, as after
    `kill -9`; each fault in `lost` does what it is asked to, and then fails.
    """

    def __init__(self, store: WorkStore) -> None:
        self._store = store
        self.there = asyncio.Event()
        self.there.set()
        self.lost: list[Exception] = []
        self.slow_s = 0.0
        """Time that each append takes until its answer arrives."""

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._store, name)
        if not callable(own):
            return own

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self.there.wait()
            answer = await own(*args, **kwargs)
            if name == "append" and any(args[3:]):
                await asyncio.sleep(self.slow_s)
            if name == "append" and self.lost and any(args[3:]):
                raise self.lost.pop()
            return answer

        return call


class BatchGateway:
    """One gateway of a scene: its application, and the task that runs batches."""

    def __init__(
        self, name: str, model: ServedModel, settings: ApiSettings, files: FrailStore, batches: FrailStore
    ) -> None:
        self.files, self.batches = files, batches
        clock = asyncio.get_running_loop().time
        shelf = BatchShelf(cast(WorkStore, batches), FileShelf(cast(WorkStore, files), settings.max_file_bytes), clock)
        self.harness = Harness(model, settings, batches=shelf)
        self.busy = False
        host = BatchHost(
            name, self.harness.app, lambda _: b"salt", lambda: self.busy, settings.request_timeout_s, clock
        )
        self.runner = BatchRunner(shelf, host, settings.batch)
        self.task = asyncio.create_task(self.runner.run())

    async def ask(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return await requested(self.harness.app, method, path, **kwargs)

    async def upload(self, content: bytes, **kwargs: Any) -> httpx.Response:
        files = {"file": ("in.jsonl", content)}
        return await self.ask("POST", "/v1/files", files=files, data={"purpose": "batch"}, **kwargs)

    async def create(self, content: bytes | list[Json], endpoint: str = COMPLETIONS, **kwargs: Any) -> str:
        """Upload a file and run it. Returns: the batch's id."""
        content = content if isinstance(content, bytes) else jsonl(content)
        uploaded = (await self.upload(content, **kwargs)).json()
        body = {"input_file_id": uploaded["id"], "endpoint": endpoint, "completion_window": "24h"}
        reply = await self.ask("POST", "/v1/batches", json=body, **kwargs)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["id"])

    async def batch(self, batch_id: str) -> Json:
        found: Json = (await self.ask("GET", f"/v1/batches/{batch_id}")).json()
        return found

    async def until(self, batch_id: str, status: str, every_s: float = 0.5) -> Json:
        """Wait, for an hour or 200 looks, until a batch has this status."""
        async with asyncio.timeout(max(3600.0, 200 * every_s)):
            while (found := await self.batch(batch_id))["status"] != status:  # noqa: ASYNC110 - as clients do
                await asyncio.sleep(every_s)
            return found

    def freeze(self) -> None:
        """Let it do nothing more: as after `kill -9`, it gives no lease up."""
        self.files.there.clear()
        self.batches.there.clear()

    def thaw(self) -> None:
        """Let it go on as if no time had passed for it."""
        self.files.there.set()
        self.batches.there.set()

    async def lines_of(self, file_id: str | None) -> list[Json]:
        """Lines of a result file; none if there is no such file."""
        if file_id is None:
            return []
        reply = await self.ask("GET", f"/v1/files/{file_id}/content")
        assert reply.status_code == 200, reply.text
        return [json.loads(one) for one in reply.text.splitlines()]

    async def results(self, batch: Json) -> tuple[list[Json], list[Json]]:
        """Lines of its output file and of its error file."""
        return await self.lines_of(batch["output_file_id"]), await self.lines_of(batch["error_file_id"])


class BatchScene:
    """Stores in memory, and the gateways that share them."""

    def __init__(self, model: ServedModel, settings: ApiSettings | None = None) -> None:
        self.model = model
        self.settings = settings or ApiSettings(batch=BatchLimits(requests=4))
        clock = asyncio.get_running_loop().time
        self.files: WorkStore = MemoryWorkStore(self.settings.files, clock)
        self.batches: WorkStore = MemoryWorkStore(self.settings.batches, clock)
        self.gateways: list[BatchGateway] = []

    def gateway(self) -> BatchGateway:
        """Start a gateway."""
        stores = FrailStore(self.files), FrailStore(self.batches)
        one = BatchGateway(f"g{len(self.gateways)}", self.model, self.settings, *stores)
        self.gateways.append(one)
        return one

    async def end(self) -> None:
        """Stop all gateways."""
        for one in self.gateways:
            one.task.cancel()
        await asyncio.gather(*(one.task for one in self.gateways), return_exceptions=True)


def play(
    model: ServedModel, story: Callable[[BatchScene], Coroutine[Any, Any, None]], settings: ApiSettings | None = None
) -> None:
    """Run a story in virtual time."""

    async def whole() -> None:
        scene = BatchScene(model, settings)
        try:
            await story(scene)
        finally:
            await scene.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
