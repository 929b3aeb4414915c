"""Real instances come and go 500 times under steady load: no request fails, every token is right, nothing is left."""

import asyncio
import random
import time
from pathlib import Path

import pytest
from msgspec import structs

from serving.instance.live.instance import Instance
from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Pools, executor, small_config
from tests.live.workload import GREEDY, Ask, Reference, rng_greedy, rng_sampled, tokens

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

EVENTS = {("prefill", "decode"): 300, ("aggregated",): 200}
CLIENTS = 12
MOST = 3
"""Instances of a role that stay at one time."""


def asks() -> list[Ask]:
    """What is asked over and over: short and long, greedy and seeded, several choices, shared beginnings."""
    rng = random.Random(7)
    base = tokens(rng, 60)
    made = [Ask((*base, *tokens(rng, rng.randrange(1, 40))), structs.replace(GREEDY, max_tokens=80)) for _ in range(6)]
    made += [Ask(tokens(rng, rng.randrange(1, 120)), rng_greedy(rng), n=rng.choice((1, 2))) for _ in range(8)]
    made += [Ask(tokens(rng, rng.randrange(1, 120)), rng_sampled(rng), n=rng.choice((1, 3))) for _ in range(8)]
    made.append(Ask(base, structs.replace(GREEDY, max_tokens=40, logprobs=2)))
    return made


def slowly(plan: StepPlan) -> None:
    """Long enough for an instance to leave in the middle."""
    time.sleep(0.001)


class Scaler:
    """Joins and leaves at random; one instance of each role stays."""

    def __init__(self, pools: Pools, roles: tuple[str, ...]) -> None:
        self.pools = pools
        self.roles = roles
        self.rng = random.Random(1)
        self.leaving: set[asyncio.Task[None]] = set()
        self.moved = 0

    async def join(self, role: str) -> None:
        executor(await self.pools.add(role)).before = slowly

    async def event(self) -> None:
        role = self.rng.choice(self.roles)
        staying = [i for i in self.pools.of(role) if not i.server.draining]
        if len(staying) < 2 or (len(staying) < MOST and self.rng.random() < 0.5):
            await self.join(role)
        else:
            instance = self.rng.choice(staying)
            instance.server.set_draining()  # before the next event looks
            task = asyncio.create_task(self.leave(instance))
            self.leaving.add(task)
            task.add_done_callback(self.leaving.discard)
        await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.01)))

    async def leave(self, instance: Instance) -> None:
        await self.pools.retire(instance, self.rng.choice((0.0, 0.0, 0.02)))
        self.moved += instance.place.pool != "prefill" and instance.engine.snapshot(0.0).handoffs_out_total


@pytest.mark.parametrize("roles", EVENTS, ids=["disaggregated", "aggregated"])
async def test_nothing_is_lost(roles: tuple[str, ...], checkpoint: Path, shm: Path, reference: Reference) -> None:
    config = small_config(checkpoint, mode="aggregated" if len(roles) == 1 else "disaggregated", pool_mib=2)
    todo, answered = asks(), 0
    over = asyncio.Event()

    async def client(number: int) -> None:
        nonlocal answered
        rng = random.Random(number)
        while not over.is_set():
            ask = rng.choice(todo)
            assert (await pools.ask(ask)).tokens == reference.outputs(ask), ask
            answered += 1

    async with Pools(config, shm) as pools:
        await pools.start(*roles)
        scaler = Scaler(pools, roles)
        clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
        for _ in range(EVENTS[roles]):
            await scaler.event()
            assert not any(task.done() for task in clients), "a client met an error"
        over.set()
        await asyncio.wait_for(asyncio.gather(*clients, *scaler.leaving), PATIENCE_S)
        assert answered > 20
        assert scaler.moved > 20, "streams were moved"
        await pools.audit()
