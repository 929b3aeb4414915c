"""A request may end at any moment; all its resources are released."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from serving.errors import DeadlineError
from serving.gateway.live.generation import LiveGeneration
from serving.instance.live.instance import Instance
from serving.values.step_plan import StepPlan
from tests.live.harness import Pools, Start, Told, collect, executor, small_config, transport_of, until
from tests.live.workload import GREEDY, Ask, Reference, tokens

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

LONG = Ask(tuple(range(200)), structs.replace(GREEDY, max_tokens=400))


def slow(step_s: float) -> Callable[[StepPlan], None]:
    """A hook that makes every step last at least this long."""
    return lambda plan: time.sleep(step_s)


async def read_until(generation: LiveGeneration, count: int) -> list[int]:
    """Read the first choice until it has `count` tokens."""
    got: list[int] = []
    while len(got) < count:
        for update in await generation.next():
            got += update.news.tokens
    return got


async def test_while_held_for_a_decode_instance(started: Start) -> None:
    pools = await started("prefill")
    generation = pools.submit(LONG)
    assert len(await read_until(generation, 1)) == 1
    await until(lambda: pools.instances[0].engine.snapshot(0.0).held == 1, "the blocks are held")
    generation.cancel()
    await pools.audit()


async def test_while_being_pulled(started: Start) -> None:
    pools = await started("prefill", "decode")
    begun, go_on = asyncio.Event(), asyncio.Event()
    slow_pull(pools.of("decode")[0], begun, go_on)
    generation = pools.submit(LONG)
    await asyncio.wait_for(begun.wait(), 30)
    generation.cancel()
    await until(lambda: pools.of("prefill")[0].engine.idle(), "the source let go")
    assert pools.of("decode")[0].engine.snapshot(0.0).pulling == 1, "the target waits for the copy to end"
    go_on.set()
    await pools.audit()


def slow_pull(instance: Instance, started: asyncio.Event, go_on: asyncio.Event) -> None:
    """Make the instance's pulls wait."""
    transport, loop = transport_of(instance), asyncio.get_running_loop()
    pull = transport.pull

    def waiting(*args: object) -> int:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)
        return pull(*args)

    transport.pull = waiting


async def test_one_choice_stops_and_the_others_go_on(started: Start, reference: Reference) -> None:
    ask = Ask(tuple(range(50)), structs.replace(GREEDY, max_tokens=60, temperature=0.8, seed=3), n=3)
    pools = await started("prefill", "decode")
    for instance in pools.instances:
        executor(instance).before = slow(0.005)
    generation = pools.submit(ask)
    got: list[list[int]] = [[], [], []]
    stopped = False
    while updates := await generation.next():
        for update in updates:
            assert not (stopped and update.index == 1), "no news of a stopped choice"
            got[update.index] += update.news.tokens
        if not stopped and len(got[1]) >= 4:
            generation.stop(1)
            stopped = True
    expected = reference.outputs(ask)
    assert [got[0], got[2]] == [expected[0], expected[2]]
    assert 4 <= len(got[1]) < 60
    assert got[1] == expected[1][: len(got[1])]
    await pools.audit()


async def test_a_deadline_ends_a_request_wherever_it_is(started: Start) -> None:
    pools = await started("prefill", "decode")
    for instance in pools.instances:
        executor(instance).before = slow(0.02)
    jobs = [pools.submit(LONG, time_left_s=time_left) for time_left in (0.0, 0.01, 0.05, 0.15, 0.4, 0.8)]
    for job in jobs:
        with pytest.raises(DeadlineError):
            await collect(job)
    await pools.audit()


async def test_hundreds_of_requests_a_fifth_of_them_cancelled(checkpoint: Path, shm: Path) -> None:
    rng = random.Random(7)
    async with Pools(small_config(checkpoint, pool_mib=2), shm) as pools:
        await pools.start("prefill", "prefill", "decode", "decode")
        gate = asyncio.Semaphore(64)
        plans = [Client(rng) for _ in range(200)]

        async def run(client: "Client") -> Told | None:
            async with gate:
                return await client.run(pools)

        told = await asyncio.gather(*(run(client) for client in plans))
        await pools.audit()
    for client, answer in zip(plans, told, strict=True):
        if answer is not None:
            assert all(1 <= len(out) <= client.ask.sampling.max_tokens for out in answer.tokens)
            assert None not in answer.finish
    assert 20 < sum(client.leaves for client in plans) < 60


class Client:
    """One of hundreds of clients; a fifth disconnect early, at a random moment."""

    def __init__(self, rng: random.Random) -> None:
        sampling = structs.replace(GREEDY, max_tokens=rng.randrange(1, 16), temperature=rng.choice((0.0, 1.0)))
        self.ask = Ask(tokens(rng, rng.randrange(1, 150)), sampling, n=rng.choice((1, 1, 1, 1, 2)))
        self.leaves = rng.random() < 0.2
        self._after_updates = rng.choice((0, 0, 1, 2, 4))
        self._after_s = rng.choice((0.0, rng.uniform(0, 0.3)))

    async def run(self, pools: Pools) -> Told | None:
        """Read the response, or disconnect."""
        generation = pools.submit(self.ask)
        if not self.leaves:
            return await collect(generation)
        for _ in range(self._after_updates):
            if not await generation.next():
                break
        await asyncio.sleep(self._after_s)
        generation.cancel()
        return None
