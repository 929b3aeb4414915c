"""Pools in one process: real instances, links, shared memory and model; no Ray.

async with Pools(config, shm) as pools:
    await pools.start("prefill", "decode", "decode")
    told = await pools.ask(Ask(prompt))
    await pools.audit()
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hardware.topology import NpuId
from hardware.ub.segment import UbSegment
from serving.config.cluster import HardwareConfig
from serving.config.engine import EngineConfig, PoolConfig, ServingConfig
from serving.config.gateway import GatewayConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.gateway.live.backend import LiveBackend
from serving.gateway.live.generation import LiveGeneration
from serving.ids import GatewayId, NodeId, ReplicaId, RequestId, SequenceId
from serving.instance.core.ports import PreparingExecutor, StepExecutor
from serving.instance.live.instance import Instance, InstancePlace
from serving.telemetry.stats import ITERATION_TOKEN_BUCKETS
from serving.values.jobs import GenerationJob
from serving.values.pool_view import PoolView
from serving.values.sequence import FinishReason, PoolUse, SequenceSpec
from serving.values.step_plan import StepPlan, StepResult
from tests.live.workload import Ask

SECRET = "between gateways and instances"
PATIENCE_S = 180.0
"""Time limit of every wait in tests: generous, the machine may be busy."""


def small_config(model: Path, *, mode: str = "disaggregated", pool_mib: int = 4, **sections: Any) -> ServeConfig:
    """Small pools: blocks of 16 tokens, prefill chunks of 64, one NPU of two dies of 16 MiB each."""
    pool = PoolConfig(
        npus_per_instance=1, ub_memory_mib=pool_mib, max_step_tokens=64, max_sequences=32, max_waiting=512
    )
    config = ServeConfig(
        model=ModelConfig(path=model, dtype="float32", device="cpu"),
        gateway=GatewayConfig(role_wait_s=PATIENCE_S),
        hardware=HardwareConfig(hbm_per_die_mib=16),
        engine=EngineConfig(threads=1),
        serving=ServingConfig(mode="aggregated" if mode == "aggregated" else "disaggregated"),
        prefill=pool,
        decode=pool,
        aggregated=pool,
    )
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


class HookedExecutor:
    """The real executor with a hook before each step. The hook may sleep, wait or raise."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self.before: Callable[[StepPlan], None] | None = None
        self.steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """Run the hook, then the step."""
        self.steps += 1
        if self.before is not None:
            self.before(plan)
        return self._executor.execute(plan)

    def prepare(self, plan: StepPlan) -> Callable[[], StepResult] | None:
        """Lay the step out; the hook runs with the step. Its tokens are not known at that time."""
        run = self._executor.prepare(plan) if isinstance(self._executor, PreparingExecutor) else None
        if run is None:
            return None

        def hooked() -> StepResult:
            self.steps += 1
            if self.before is not None:
                self.before(plan)
            return run()

        return hooked


@dataclass
class Member:
    """An entry of the membership."""

    replica: ReplicaId
    pool: str
    node: NodeId
    host: str
    port: int
    incarnation: str = "first"
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Told:
    """A client's result: per choice the tokens and the finish reason."""

    tokens: list[list[int]]
    finish: list[FinishReason | None]
    cached: list[int | None]
    pool: list[PoolUse | None]
    preempted: list[int]


Start = Callable[..., Awaitable["Pools"]]
"""Starts pools of these roles, which end with the test: see the fixture `started`."""


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds; on a timeout fail with `what`."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - the conditions look at objects that have no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"still not so: {what}") from None


async def collect(generation: LiveGeneration) -> Told:
    """Read a job to its end."""
    count = len(generation.job.sequences)
    told = Told([[] for _ in range(count)], [None] * count, [None] * count, [None] * count, [0] * count)
    async with asyncio.timeout(PATIENCE_S):
        while updates := await generation.next():
            for update in updates:
                assert told.finish[update.index] is None, "news after the end"
                news = update.news
                told.tokens[update.index] += news.tokens
                told.finish[update.index] = news.finish_reason
                told.preempted[update.index] = update.preempted
                if news.cached_tokens is not None:
                    assert told.cached[update.index] is None, "cached tokens are told once"
                    told.cached[update.index] = news.cached_tokens
                    told.pool[update.index] = news.pool
    return told


def check_counters(instance: Instance) -> None:
    """Check that counters of one family have counted the same events, and that no request is in flight."""
    name, loop, snapshot = instance.place.replica, instance.loop, instance.engine.snapshot(0.0)
    steps, counts = snapshot.steps_total, snapshot.steps_by_tokens
    assert sum(counts) == steps == instance.npus.npus[0].counters.steps, name
    assert bool(steps) == bool(loop.busy_s), name
    tokens, bounds = snapshot.prompt_tokens_total + snapshot.generated_tokens_total, ITERATION_TOKEN_BUCKETS
    most = sum(count * bound for count, bound in zip(counts, (*bounds, sys.maxsize), strict=True))
    least = sum(count * (bound + 1) for count, bound in zip(counts, (-1, *bounds), strict=True))
    assert least <= tokens <= most, name
    assert snapshot.prefix_hits_tokens_total <= snapshot.prefix_queries_tokens_total, name
    assert sum(snapshot.accepted_drafts_total) <= snapshot.draft_tokens_total, name
    if not snapshot.handoffs_in_total:
        assert snapshot.handoff_bytes_in_total == snapshot.handoff_seconds_total == 0, name


class Pools:
    """Instances and one gateway."""

    def __init__(
        self,
        config: ServeConfig,
        folder: Path,
        nodes: Sequence[str] = ("node",),
        pool_view: Callable[[], PoolView] | None = None,
    ) -> None:
        self.config = config
        self._pool_view = pool_view
        self.instances: list[Instance] = []
        self.backend = self.gateway("gateway")
        self._folder = folder
        self._nodes = [NodeId(node) for node in nodes]
        self.members: dict[ReplicaId, Member] = {}
        self._backends = [self.backend]
        self._follower: asyncio.Task[None] | None = None
        self._jobs = self._made = 0

    async def __aenter__(self) -> Self:
        self._follower = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, at: TracebackType | None) -> None:
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
        for backend in self._backends:
            backend.close()
        await asyncio.sleep(0)
        for instance in self.instances:
            await instance.stop()
        for segment in self._folder.glob("ub-*"):
            segment.unlink()

    async def start(self, *pools: str) -> None:
        """Start instances and wait until the gateway has a link and a report of each."""
        for pool in pools:
            await self.add(pool)
        await self.linked()

    async def add(self, pool: str, *, listed: bool = True) -> Instance:
        """Add an instance; nodes take turns."""
        number, self._made = self._made, self._made + 1
        node = self._nodes[number % len(self._nodes)]
        place = InstancePlace(
            replica=ReplicaId(f"{pool}#{number}"),
            pool=pool,
            node=node,
            npus=(NpuId(0, number),),
            segment_path=self._folder / f"ub-{node}-{pool}-{number}",
            link_host="127.0.0.1",
            threads=1,
        )
        instance = Instance(self.config, place, SECRET, self._pool_view)
        hooked = HookedExecutor(instance.loop._executor)
        instance.loop._executor = instance.loop._preparing = hooked
        host, port = await instance.start()
        self.instances.append(instance)
        if listed:
            self.members[place.replica] = Member(place.replica, pool, node, host, port)
        return instance

    def gateway(self, name: str) -> LiveBackend:
        """An additional gateway; only the first one, `backend`, is closed and audited."""
        return LiveBackend(GatewayId(name), SECRET, self.config, list(self.config.pools))

    async def linked(self, *backends: LiveBackend) -> None:
        """Wait until each listed instance can be routed to."""

        def all_up() -> bool:
            links = [backend.links.link(r) for backend in backends or [self.backend] for r in self.members]
            return all(link is not None and link.status is not None for link in links)

        await until(all_up, "every listed instance has a link")

    async def known_idle(self) -> None:
        """Wait until the gateway has received idle reports of every instance."""

        def idle() -> bool:
            links = self.backend.links.up()
            told = [link.status for link in links if link.status is not None and not self._reserved(link.replica)]
            return len(told) == len(links) and not any(s.queued_tokens or s.waiting or s.running for s in told)

        await until(idle, "the gateway knows of no load")

    def _reserved(self, replica: ReplicaId) -> int:
        """Tokens sent to it since the last report."""
        known = self.backend.core.instances.find(replica)
        return 0 if known is None or known.view is None else known.view.reserved_tokens

    def unlist(self, instance: Instance) -> None:
        """Remove an instance from the membership."""
        self.members.pop(instance.place.replica, None)

    def relist(self, instance: Instance) -> None:
        """Add an instance that was started unlisted to the membership."""
        place, (host, port) = instance.place, instance.server.address
        self.members[place.replica] = Member(place.replica, place.pool, place.node, host, port)

    async def retire(self, instance: Instance, drain_s: float = 0.0) -> None:
        """End a replica in an orderly way: drain, then stop. Asserts that it leaves no state."""
        await instance.server.leave(drain_s)
        self.unlist(instance)
        instance.engine.check()
        assert instance.engine.snapshot(0.0).kv_blocks_used == 0
        self.instances.remove(instance)
        await instance.stop()

    async def kill(self, instance: Instance) -> None:
        """What gateways observe of a dying process: connections break, and the port refuses connections."""
        self.unlist(instance)
        await instance.server.stop()

    def of(self, pool: str) -> list[Instance]:
        """Instances of one pool."""
        return [instance for instance in self.instances if instance.place.pool == pool]

    def submit(self, ask: Ask, time_left_s: float = 300.0, priority: int = 0) -> LiveGeneration:
        """Submit a request to the gateway."""
        return self.backend.submit(self.job(ask, time_left_s, priority))

    def job(self, ask: Ask, time_left_s: float = 300.0, priority: int = 0) -> GenerationJob:
        """A request as the HTTP side would submit it."""
        self._jobs += 1
        name = f"request-{self._jobs}"
        specs = [
            SequenceSpec(
                SequenceId(f"{name}/{i}"),
                ask.prompt,
                ask.choice(i),
                time_left_s=time_left_s,
                priority=priority,
                salt=ask.salt,
                namespace=ask.namespace,
            )
            for i in range(ask.n)
        ]
        return GenerationJob(RequestId(name), tuple(specs))

    async def ask(self, ask: Ask) -> Told:
        """Run one request to its end."""
        return await collect(self.submit(ask))

    async def audit(self) -> None:
        """Wait until all work is done; then assert that all resources are released and every ledger balances."""
        await until(self._quiet, f"all at rest: {self._state()}")
        for instance in self.instances:
            instance.engine.check()
            snapshot = instance.engine.snapshot(0.0)
            left = (snapshot.kv_blocks_used, snapshot.held, snapshot.pulling, snapshot.waiting, snapshot.running)
            assert left == (0, 0, 0, 0, 0), f"{instance.place.replica} keeps {snapshot}"
            assert (snapshot.fetching, snapshot.storing_blocks) == (0, 0)
            assert snapshot.queued_tokens == 0
            assert instance.loop.progress_age_s() == 0.0
            check_counters(instance)
        assert self.backend.counts() == {"running": 0, "queued": 0, "sequences": 0}
        for path in self._folder.glob("ub-*"):
            with UbSegment.attach(path) as segment:
                segment.check()

    def _quiet(self) -> bool:
        engines = all(i.engine.idle() and i.server.open_sequences == 0 for i in self.instances)
        posted = any(i.loop._events or i.loop.progress_age_s() for i in self.instances)
        posted = posted or any(i.engine.snapshot(0.0).storing_blocks for i in self.instances)
        return engines and not posted and not any(self.backend.counts().values())

    def _state(self) -> str:
        parts = [f"{i.place.replica}: {i.server.open_sequences} open, idle={i.engine.idle()}" for i in self.instances]
        return f"{self.backend.counts()}; " + "; ".join(parts)

    async def _follow(self) -> None:
        while True:
            self.backend.links.update(self.members.values())
            self.backend.links.check_silence()
            await asyncio.sleep(0.05)


def executor(instance: Instance) -> HookedExecutor:
    """The instance's executor, to hook into."""
    hooked = instance.loop._executor
    assert isinstance(hooked, HookedExecutor)
    return hooked


def transport_of(instance: Instance) -> Any:
    """The instance's transport, to break."""
    return instance._transport
