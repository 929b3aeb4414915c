"""Two gateways in one process over the same stores, with a clock of the test's own; one of them can be killed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from serving.errors import UnavailableError
from serving.gateway.api.app import create_app
from serving.gateway.api.responses.background_runs import BackgroundRuns
from serving.gateway.api.responses.kept import MemoryResponseStore
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.api.work_store import MemoryWorkStore
from serving.gateway.core.work_items import WorkItem, WorkLimits
from serving.telemetry.metrics import GatewayMetrics
from tests.fakes.backend import FakeBackend, Script
from tests.gateway.api.support import EOS, bearer, named_events, requested

PATH = "/v1/responses"
LIMITS = WorkLimits(items=2, seconds=1000.0, lease_s=10.0)


class SharedStore(MemoryWorkStore):
    """What gateways share, as a Redis would be; it may be away, and lose the answers to writes."""

    shared = True
    away = 0
    """Writes that fail."""
    silent = False
    """Whether those writes are made all the same."""

    async def append(self, *args: Any, **given: Any) -> WorkItem:
        """Fail as often as wished."""
        if self.away:
            self.away -= 1
            if self.silent:
                await super().append(*args, **given)
            raise UnavailableError("the store is away")
        return await super().append(*args, **given)


class Site:
    """Two gateways over the same stores, with clocks of the test's own."""

    def __init__(self, model: ServedModel, limits: WorkLimits = LIMITS, **settings: Any) -> None:
        self.now = 1000.0
        self.model = model
        self.settings = ApiSettings(**settings)
        self.store = SharedStore(limits, lambda: self.now)
        self.responses = MemoryResponseStore(self.settings.keep, lambda: self.now)
        self.script = self.say("Once upon a time")
        self.backends: list[FakeBackend] = []
        self.runs: list[BackgroundRuns] = []
        self.apps = [self.gateway(name) for name in ("g1", "g2")]

    def gateway(self, name: str) -> Any:
        backend = FakeBackend(lambda _: self.script)
        runs = BackgroundRuns(self.store, name, poll_s=0.001)
        self.backends.append(backend)
        self.runs.append(runs)
        metrics = GatewayMetrics(self.model.names[0], max_model_len=self.model.max_model_len)
        return create_app(backend, self.model, self.settings, metrics, responses=self.responses, background=runs)

    def say(self, text: str, **more: Any) -> Script:
        return Script((*self.model.tokenizer.encode(text, add_special_tokens=False), EOS), **more)

    async def ask(self, *, gateway: int = 0, key: str | None = None, **fields: Any) -> httpx.Response:
        body = {"input": "hi", "background": True, **fields}
        return await requested(self.apps[gateway], "POST", PATH, json=body, headers=bearer(key))

    async def get(self, name: str, gateway: int = 0, key: str | None = None, **query: Any) -> httpx.Response:
        return await requested(self.apps[gateway], "GET", f"{PATH}/{name}", params=query, headers=bearer(key))

    async def post(self, path: str, gateway: int = 0, key: str | None = None) -> httpx.Response:
        return await requested(self.apps[gateway], "POST", f"{PATH}/{path}", headers=bearer(key))

    async def events(self, name: str, gateway: int = 0, **query: Any) -> list[Any]:
        reply = await self.get(name, gateway, stream="true", **query)
        assert reply.status_code == 200, reply.text
        return named_events(reply.text)

    async def kill(self, gateway: int) -> None:
        """Stop a gateway's work as SIGKILL does: nothing is released, nothing more is written."""
        tasks = list(self.runs[gateway]._tasks.values())
        self.runs[gateway].store = _Gone(LIMITS, lambda: 0.0)
        for work in self.runs[gateway]._works.values():
            work._store = self.runs[gateway].store
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def records(self, name: str) -> int:
        item = await self.store.get("default", name)
        return 0 if item is None else item.records


class _Gone(MemoryWorkStore):
    """The store as a killed gateway reaches it."""

    async def release(self, namespace: str, name: str, owner: str) -> None:
        """Do nothing."""


def texts(events: Sequence[Any]) -> str:
    return "".join(event.get("delta", "") for event in events)


def numbers(events: Sequence[Any]) -> list[int]:
    return [event["sequence_number"] for event in events]


def site_events(site: Site, name: str) -> list[Any]:
    [records] = [found for (_, known), found in site.store._work._records.items() if known == name]
    return named_events(b"".join(records).decode())
