"""An engine's loop over fakes, and all its deliveries."""

import time
from collections.abc import Callable
from typing import Any

from hardware.clock import WallClock
from serving.ids import ReplicaId, SequenceId
from serving.instance.core.events import EngineEffect, EngineEvent, NextStep
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.instance.live.engine_loop import EngineLoop
from serving.instance.live.engine_news import LoopEvent
from serving.values.orders import Add, Adopt, Cancel, Release
from serving.values.sequence import HandoffTicket, SamplingParams, SequenceSpec
from tests.fakes.engine_calls import EngineCalls
from tests.fakes.executor import FakeExecutor
from tests.fakes.transport import FakeFabric, FakeTransport

PATIENCE_S = 60.0
BLOCKS, BLOCK_TOKENS = 32, 4
NOBODY = Cancel(SequenceId("nobody"))


class Rig:
    """One loop over fakes, and all its deliveries."""

    def __init__(self, role: EngineRole, fabric: FakeFabric, name: str) -> None:
        settings = EngineSettings(role=role, block_tokens=BLOCK_TOKENS, max_step_tokens=16, max_sequences=4)
        self.engine = EngineCalls(settings, BLOCKS)
        self.executor = FakeExecutor(BLOCKS, BLOCK_TOKENS)
        self.transport = FakeTransport(fabric, ReplicaId(name), self.executor)
        self.news: list[LoopEvent] = []
        self.steps: list[tuple[int, float]] = []
        self.told: list[EngineEvent] = []
        """Events that the engine received from outside."""
        self.at: dict[EngineEvent, Callable[[], object]] = {}
        """Replacement of an event, called in the loop's thread."""
        self.loop = EngineLoop(
            self.engine,
            self.executor,
            self.transport,
            WallClock(),
            self.news.extend,
            name,
            on_step=self._stepped,
            on=self._on,
        )

    def _on(self, event: EngineEvent, now: float) -> list[EngineEffect]:
        if isinstance(event, NextStep | Cancel | Release):
            self.told.append(event)
        if (act := self.at.get(event) if isinstance(event, Cancel) else None) is not None:
            act()
        return self.engine.on(event, now)

    def _stepped(self, tokens: int, elapsed_s: float) -> None:
        self.steps.append((tokens, elapsed_s))

    def add(self, spec: SequenceSpec) -> None:
        self.loop.post(Add(spec))

    def adopt(self, spec: SequenceSpec, ticket: HandoffTicket) -> None:
        self.loop.post(Adopt(spec, ticket))

    def wait(self, kind: type[Any]) -> Any:
        """The first event of one kind."""
        wait_for(lambda: any(isinstance(item, kind) for item in self.news), f"{kind.__name__} in {self.news}")
        return next(item for item in self.news if isinstance(item, kind))

    @property
    def ahead(self) -> Any:
        """The prepared step, and the running one."""
        return self.loop._ahead

    def assert_ended(self) -> None:
        """Assert that its threads end."""
        for thread in (self.loop._thread, self.loop._beside):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def quiet(self) -> None:
        wait_for(lambda: self.engine.idle() and not self.loop._events, "at rest")
        wait_for(lambda: self.loop.progress_age_s() == 0.0, "no work")
        self.engine.check()
        assert self.engine.snapshot(0.0).kv_blocks_used == 0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"still not so: {what}"
        time.sleep(0.002)


def spec(name: str = "s", prompt: int = 10, max_tokens: int = 6, **more: Any) -> SequenceSpec:
    tokens = tuple(range(1, prompt + 1))
    return SequenceSpec(SequenceId(name), tokens, SamplingParams(max_tokens=max_tokens, temperature=0.0), **more)
