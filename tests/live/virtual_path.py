"""The whole path of a request in one thread: real gateway backends, links' messages, instance servers and engines.

Only computation and copies are fake, and time stands still unless a test moves it. Messages wait on their wires for a
random time; instances die, drain and join, links break, steps and pulls fail, clients disconnect, all by one seed.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from serving.errors import EngineError, HandoffError, ServingError
from serving.gateway.live.backend import LiveBackend
from serving.ids import GatewayId, NodeId, ReplicaId, RequestId, SequenceId
from serving.instance.core.events import EngineEvent, HandoffClosed, HandoffReady
from serving.instance.core.settings import EngineRole
from serving.instance.live.engine_news import LoopEvent
from serving.instance.live.instance_server import InstanceServer
from serving.values.instances import Status
from serving.values.jobs import GenerationJob
from serving.values.news import Prefilled, Value
from serving.values.orders import Add, Adopt
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec
from serving.wire import messages as m
from tests.fakes.executor import STOP_TOKEN
from tests.fakes.pool import FakePool
from tests.fakes.transport import FakeFabric
from tests.instance.bench import SETTINGS
from tests.instance.fake_instance import FakeInstance
from tests.live import by_hand
from tests.live.harness import small_config

FOREVER_S = 1e6
OFFER_S = 1.0
"""A draining instance offers what it has so often."""


class Wire:
    """One link: the gateway's end, and the messages in transit in both directions."""

    up, used, hangs, still_since = True, False, False, None

    def __init__(self, gate: LiveBackend, node: "Node") -> None:
        self.gate, self.node = gate, node
        self.replica, self.welcome, self.status = node.replica, node.welcome, cast("Status | None", None)
        self.incarnation = f"{id(node):x}"
        self.received_at = node.now()
        self._down: deque[bytes] = deque()
        self._up: deque[bytes] = deque()
        self.far_end = cast(Any, _FarEnd(self._answer))
        node.wires.append(self)
        by_hand.link_up(gate, self.replica, self)
        by_hand.greet(node.server, self.far_end)
        by_hand.report(node.server)

    def send(self, message: Value) -> bool:
        """Send like `InstanceLink.send`."""
        self.used = self.used or isinstance(message, Add | Adopt)
        if self.up:
            self._down.append(m.encode(message)[4:])
        return self.up

    def _answer(self, message: Value) -> bool:
        if self.up:
            self._up.append(m.encode(message)[4:])
        return self.up

    def carry(self, share: float, rng: Random) -> None:
        """Deliver some of the messages in transit, or all with `share` 1."""
        for line, arrive in ((self._down, self._at_instance), (self._up, self._at_gateway)):
            for _ in range(len(line) if share == 1.0 else rng.randrange(len(line) + 1)):
                if line:  # else the link was cut by what arrived before
                    arrive(line.popleft())

    def _at_instance(self, body: bytes) -> None:
        by_hand.order(self.node.server, self.far_end, body)

    def _at_gateway(self, body: bytes) -> None:
        message = m.decode_to_gateway(body)
        self.received_at = self.node.now()
        if isinstance(message, Status):
            self.status = message
        by_hand.arrive(self.gate, self, message)

    def cut(self) -> None:
        """Break the link for both sides."""
        self.up = False
        self._down.clear()
        self._up.clear()
        self.node.wires.remove(self)
        if self.node.alive:
            by_hand.hang_up(self.node.server, self.far_end)
        by_hand.link_down(self.gate, self)


class _FarEnd:
    """The instance's end of a wire."""

    def __init__(self, send: Callable[[Value], bool]) -> None:
        self.send = send


class Node:
    """One instance: its server and its engine, stepped by hand."""

    def __init__(self, pool: str, number: int, path: "VirtualPath") -> None:
        rng = path.rng
        self.replica = ReplicaId(f"{pool}#{number}")
        self.alive, self.offers_at = True, 0.0
        self.wires: list[Wire] = []
        self.now = path.now
        waiting, running, blocks = rng.choice([1, 3, 20]), rng.choice([2, 4, 8]), rng.choice([16, 24, 40])
        settings = changed(
            SETTINGS, role=EngineRole(pool), handoff_lease_s=30.0, max_waiting=waiting, max_sequences=running
        )
        self.inside = FakeInstance(self.replica, settings, blocks, path.fabric, FakePool())
        self.welcome = m.InstanceWelcome(self.replica, pool, NodeId("n"), "l", settings.block_tokens, blocks, 64)
        self.server = InstanceServer(self.welcome, "", None, lambda: cast(Any, SimpleNamespace(lost=(), late=())))
        by_hand.serve(self.server, self)
        self._posted: deque[EngineEvent] = deque()
        self._news: list[LoopEvent] = []

    # ---- what a server knows of its engine loop

    time_scale = 1.0

    @property
    def snapshot(self) -> Any:
        """Snapshot, like `EngineLoop`; so are the following methods."""
        return self.inside.engine.snapshot(self.now())

    def progress_age_s(self) -> float:
        """Always zero: it never hangs."""
        return 0.0

    def step_limit_s(self) -> float:
        """Limit, without effect."""
        return 1.0

    @property
    def unseen(self) -> tuple[int, int]:
        """Posted prompts that the engine has not received."""
        sizes = [len(one.spec.prompt) + len(one.spec.output) for one in self._posted if isinstance(one, Add)]
        return len(sizes), sum(sizes)

    def post(self, event: EngineEvent) -> None:
        """Deliver at the next turn."""
        self._posted.append(event)

    # ---- moving on

    def turn(self, rng: Random, faults: float) -> None:
        """One turn: commands, pulls and a step, some of which fail."""
        inside, now = self.inside, self.now()
        self._tell()
        while inside.pulls and (not faults or rng.random() < 0.6):
            inside.end_pull(0, now, HandoffError("lost") if rng.random() < faults else None)
        self._tell()
        if not faults or rng.random() < 0.8:
            inside.end_step(now, EngineError("broken") if rng.random() < faults / 3 else None)
        self._tell()
        inside.begin_step(now)
        self._tell()
        inside.engine.check()
        if self.server.draining and self.server.open_sequences and now >= self.offers_at:
            inside.engine.move_out(now)
            self.offers_at = now + OFFER_S
            self._tell()

    def _tell(self) -> None:
        """Deliver the posted events to the engine, and send the resulting events."""
        inside = self.inside
        while self._posted:
            inside.engine.tell(self._posted.popleft(), self.now())
        for event in inside.engine.take_events():
            if isinstance(event, HandoffReady):
                blocks = event.ticket_id, event.blocks, event.hashes, event.computed_tokens
                ticket = inside.transport.register(*blocks)
                self._news.append(Prefilled(event.first, replace(ticket, drafts=event.drafts)))
                continue
            if isinstance(event, HandoffClosed):
                inside.transport.withdraw(event.ticket_id)
            self._news.append(event)
        news, self._news = self._news, []
        by_hand.tell(self.server, news)

    @property
    def at_rest(self) -> bool:
        """Whether no work is left."""
        return not (self._posted or self.inside.busy) and self.inside.engine.idle()


class Client:
    """One request and its received output; may stop a choice, or disconnect, after some tokens."""

    def __init__(self, gate: LiveBackend, job: GenerationJob, rng: Random) -> None:
        self.job = job
        self.generation = gate.submit(job)
        self.tokens: list[list[int]] = [[] for _ in job.sequences]
        self.ends: dict[int, FinishReason | None] = {}
        self.error: ServingError | None = None
        self.left = False
        self._leaves_at = rng.choice([FOREVER_S] * 6 + [rng.randrange(12)])
        self._stops_at = {i: rng.randrange(1, 8) for i in range(len(job.sequences)) if rng.random() < 0.15}
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while len(self.ends) < len(self.tokens) and not self.left:
                updates = await self.generation.next()
                assert updates, "it ended with unfinished choices"
                for update in updates:
                    assert update.index not in self.ends, "news of what is over"
                    self.tokens[update.index] += update.news.tokens
                    if update.news.finish_reason is not None:
                        self.ends[update.index] = update.news.finish_reason
                self._lose_interest()
        except ServingError as error:
            self.error = error

    def _lose_interest(self) -> None:
        for index, tokens in enumerate(self.tokens):
            if index not in self.ends and len(tokens) >= self._stops_at.get(index, FOREVER_S):
                self.ends[index] = None
                self.generation.stop(index)
        if sum(map(len, self.tokens)) >= self._leaves_at:
            self.left = True
            self.generation.cancel()


class VirtualPath:
    """Gateways, instances and clients. Create it on a running event loop, whose time it controls."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self._time = 1000.0
        asyncio.get_running_loop().time = self.now  # type: ignore[method-assign]
        self.fabric = FakeFabric()
        self.nodes: list[Node] = []
        self.clients: list[Client] = []
        self.pools = rng.choice([["prefill", "decode"]] * 4 + [["aggregated"]])
        self._joined = 0
        limits = {
            "max_running_sequences": rng.choice([3, 8, 64]),
            "max_queued_requests": rng.choice([2, 8, 100]),
            "max_queued_tokens": rng.choice([30, 200, 10_000]),
            "role_wait_s": FOREVER_S / 1e3,
            "routing": rng.choice(["load", "locality", "round_robin"]),
        }
        engine = {"block_tokens": SETTINGS.block_tokens, "empty_role_s": 2.0, "max_attempts": 6}
        config = small_config(Path("/nowhere"), mode=self.pools[-1], gateway=limits, engine=engine)
        self.gates = [LiveBackend(GatewayId(f"g{n}"), "", config, self.pools) for n in range(2)]
        for gate in self.gates:
            by_hand.without_waker(gate)
        for pool in self.pools * rng.choice([1, 2]):
            self.join(pool)

    def now(self) -> float:
        """The shared time."""
        return self._time

    def join(self, pool: str) -> None:
        """Add an instance."""
        self._joined += 1
        node = Node(pool, self._joined, self)
        self.nodes.append(node)
        for gate in self.gates:
            Wire(gate, node)

    def lose(self, node: Node) -> None:
        """Lose an instance."""
        node.alive = False
        self.nodes.remove(node)
        del self.fabric.transports[node.replica]
        for wire in list(node.wires):
            wire.cut()

    def submit(self) -> None:
        """Submit a request; admission may refuse it."""
        rng, start = self.rng, self.rng.randrange(5)
        prompt = tuple((start * 7 + i) % 50 for i in range(rng.randrange(1, 30)))
        specs = []
        for i in range(rng.choice([1, 1, 1, 2, 3])):
            stops = (STOP_TOKEN,) if rng.random() < 0.5 else ()
            sampling = SamplingParams(max_tokens=rng.choice([1, 2, 5, 20]), seed=rng.randrange(4), stop_token_ids=stops)
            specs.append(SequenceSpec(SequenceId(f"r/{i}"), prompt, sampling, time_left_s=FOREVER_S))
        job = GenerationJob(RequestId("r"), tuple(specs), key=rng.choice(["", "a"]))
        try:
            self.clients.append(Client(rng.choice(self.gates), job, rng))
        except ServingError:
            return

    def misfortune(self) -> None:
        """A random change of the cluster: a loss or a join."""
        rng, kind = self.rng, self.rng.random()
        if kind > 0.6 or not self.nodes:
            if len(self.nodes) < 6:
                self.join(rng.choice(self.pools))
            return
        node = rng.choice(self.nodes)
        if kind < 0.25:
            self.lose(node)
        elif kind < 0.4:
            wire = rng.choice(node.wires)
            wire.cut()
            Wire(wire.gate, node)
        elif not node.server.draining:
            node.server.begin_to_leave(math.inf)
            node.offers_at = self.now() + 2 * rng.random()

    async def step(self, faults: float = 0.0) -> None:
        """Advance the time a little; without faults all messages in transit arrive."""
        rng, share = self.rng, 0.5 if faults else 1.0
        self._time += 0.02
        for wire in [wire for node in self.nodes for wire in node.wires]:
            wire.carry(share, rng)
        for node in list(self.nodes):
            node.turn(rng, faults)
            if rng.random() < (0.2 if faults else 1.0):
                by_hand.report(node.server)
            for wire in list(node.wires):
                wire.carry(share, rng)
            if node.server.draining and not node.server.open_sequences and node.at_rest:
                self.lose(node)
        for gate in self.gates:
            by_hand.look(gate)
            gate.core.check()
        for _ in range(4):  # clients read, and what they do is carried out
            await asyncio.sleep(0)
