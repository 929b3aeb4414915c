"""Real instances, real memory servers in separate processes: reuse, losses, and never a wrong token."""

import asyncio
import mmap
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from hardware.ub.segment import UbSegment
from serving.config.kvcache import KvCacheConfig
from serving.config.serve import ServeConfig
from serving.values.sequence import PoolUse, SamplingParams
from tests.kvpool.pool_cluster import PoolCluster
from tests.kvpool.server_process import ServerProcess
from tests.live.harness import SECRET, Pools, Told, small_config
from tests.live.pool_waits import memory, stored
from tests.live.workload import GREEDY, Ask, Reference, tokens
from tests.model.families.checkpoints import write_family
from tests.model.random_tokenizer import write_tokenizer

pytestmark = pytest.mark.asyncio
BLOCK = 16
MIB = 1 << 20


@pytest.fixture
def config(checkpoint: Path) -> ServeConfig:
    """Prefill, decode and memory servers."""
    return replace(small_config(checkpoint), kvcache=KvCacheConfig(replicas=1, get_timeout_s=20.0, put_timeout_s=20.0))


def forget(pools: Pools) -> None:
    """Empty the instances' own prefix caches, so that only the pool has the blocks."""
    for instance in pools.instances:
        with instance.loop._lock:
            pool = instance.engine.scheduler.blocks.pool
            pool.distrust(list(pool._cold))


def flip_all(server: ServerProcess) -> None:
    """Flip one bit in every 64 bytes of a server's memory."""
    with UbSegment.attach(server.record.segment) as segment:
        region = next(r for r in segment.regions() if r.generation == server.record.generation)
        with open(segment.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory_map:
            view = memoryview(memory_map)
            for offset in range(region.offset, region.offset + region.nbytes, 64):
                view[offset] ^= 1
            view.release()


async def test_another_prefill_instance_pulls_what_the_first_one_computed(
    config: ServeConfig, reference: Reference, shm: Path
) -> None:
    ask = Ask(tokens(random.Random(1), 200))
    with memory() as servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            first = await pools.ask(ask)
            assert (first.cached, first.pool) == ([0], [PoolUse()])
            await stored(pools)
            pools.unlist(pools.of("prefill")[0])
            await pools.kill(pools.of("prefill")[0])
            await pools.start("prefill")
            again = await pools.ask(ask)
            assert again.pool == [PoolUse(pulled_tokens=192)]
            assert again.cached == [192]
            assert first.tokens == again.tokens == reference.outputs(ask)


async def converse(
    pools: Pools, reference: Reference, between: Callable[[int], None], turns: int = 10
) -> list[tuple[int, int]]:
    """Ten turns of one conversation. Returns: per turn the reusable tokens, and the reused ones."""
    rng = random.Random(7)
    history: tuple[int, ...] = tokens(rng, 40)
    reused: list[tuple[int, int]] = []
    known = 0
    for turn in range(turns):
        ask = Ask(history, SamplingParams(max_tokens=24, temperature=0.0))
        told: Told = await pools.ask(ask)
        assert told.tokens == reference.outputs(ask), f"turn {turn}"
        assert told.cached[0] is not None
        reused.append((known, told.cached[0]))
        await stored(pools)
        known = (len(history) + len(told.tokens[0]) - 1) // BLOCK * BLOCK
        history = (*history, *told.tokens[0], *tokens(rng, 9))
        between(turn)
        forget(pools)
    return reused


async def test_a_conversation_goes_on_while_servers_die_and_come(
    config: ServeConfig, reference: Reference, shm: Path, tmp_path: Path
) -> None:
    with memory(3, ssd_folder=tmp_path, ssd_bytes=64 * MIB, write_through=True) as servers:

        def between(turn: int) -> None:
            match turn:
                case 1:
                    servers.kill(0)
                case 3:
                    servers.add()
                case 5:
                    servers.kill(1, listed=True)
                case 6:
                    servers.replace(1)
                case 8:
                    servers.replace(0)
                case _:
                    pass

        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "prefill", "decode")
            reused = await converse(pools, reference, between)
            await pools.audit()
    assert [cached for known, cached in reused[:2]] == [known for known, _ in reused[:2]]
    assert reused[4][1] == reused[4][0], "a new server costs nothing"
    assert reused[-1][1] > 0
    assert sum(cached for _, cached in reused) > 0.4 * sum(known for known, _ in reused)


async def test_wrong_bytes_are_computed_again_and_told(config: ServeConfig, reference: Reference, shm: Path) -> None:
    ask = Ask(tokens(random.Random(2), 120))
    with memory(1) as servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            await pools.ask(ask)
            await stored(pools)
            flip_all(servers.process(0))
            forget(pools)
            told = await pools.ask(ask)
            assert told.tokens == reference.outputs(ask)
            assert told.cached == [0]
            assert told.pool == [PoolUse(0, 112, "checksum")]
            for healed in range(1, 8):  # each request finds one more wrong block and replaces it with a correct one
                await stored(pools)
                forget(pools)
                told = await pools.ask(ask)
                assert told.tokens == reference.outputs(ask)
                assert told.cached == [healed * BLOCK]


async def test_a_frozen_server_costs_one_timeout(config: ServeConfig, reference: Reference, shm: Path) -> None:
    slow = replace(config, kvcache=replace(config.kvcache, get_timeout_s=0.4))
    ask, other = Ask(tokens(random.Random(3), 120)), Ask(tokens(random.Random(4), 50))
    with memory(1) as servers:
        async with Pools(slow, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            await pools.ask(ask)
            await stored(pools)
            servers.process(0).freeze()
            forget(pools)
            told = await pools.ask(ask)
            assert (told.tokens, told.cached) == (reference.outputs(ask), [0])
            assert told.pool == [PoolUse(0, 112, "timeout")]
            begun = asyncio.get_running_loop().time()
            skipped = await pools.ask(other)
            assert skipped.tokens == reference.outputs(other)
            assert asyncio.get_running_loop().time() - begun < 60.0
            servers.process(0).resume()


async def test_a_tenant_never_sees_what_another_one_cached(
    config: ServeConfig, reference: Reference, shm: Path
) -> None:
    prompt = tokens(random.Random(5), 100)
    with memory(1) as servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            acme = Ask(prompt, namespace="acme", salt=b"a")
            initech = Ask(prompt, namespace="initech", salt=b"i")
            await pools.ask(acme)
            await stored(pools)
            assert (await pools.ask(acme)).cached == [96]
            told = await pools.ask(initech)
            assert (told.cached, told.pool) == ([0], [PoolUse()])
            assert told.tokens == reference.outputs(initech)


async def test_a_reasoning_model_publishes_no_thoughts(config: ServeConfig, shm: Path) -> None:
    thinking = replace(config, model=replace(config.model, reasoning=True))
    ask = Ask(tokens(random.Random(6), 64), SamplingParams(max_tokens=40, temperature=0.0))
    with memory(1) as servers:
        async with Pools(thinking, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            told = await pools.ask(ask)
            await stored(pools)
            forget(pools)
            following = Ask((*ask.prompt, *told.tokens[0], 1, 2, 3))
            assert (await pools.ask(following)).cached == [64]


@pytest.mark.nightly("tests/instance/test_windowed_models.py::test_tokens_are_those_of_blocks_that_stay")
async def test_blocks_outside_a_sliding_window_are_not_missed(tmp_path: Path, shm: Path) -> None:
    """Blocks outside the window are freed without effect on any token: handed over, pulled from the pool wholly or in
    part.
    """
    write_family(tmp_path, "gpt_oss")
    write_tokenizer(tmp_path, 320, 512)
    reference, rng = Reference(tmp_path), random.Random(4)
    kvcache = KvCacheConfig(replicas=1, get_timeout_s=20.0, put_timeout_s=20.0)
    config = replace(small_config(tmp_path, pool_mib=1), kvcache=kvcache)
    begun = tokens(rng, 150)
    asks = [Ask(begun, GREEDY), *(Ask((*begun[:130], *tokens(rng, 40)), GREEDY) for _ in range(3))]
    asks += [Ask(tokens(rng, rng.randrange(20, 200)), structs.replace(GREEDY, max_tokens=60)) for _ in range(12)]
    with PoolCluster(1, node="node", secret=SECRET, capacity_bytes=32 * MIB) as servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            first = await pools.ask(asks[0])
            await stored(pools)
            forget(pools)
            again = await pools.ask(asks[0])
            assert again.tokens == first.tokens == reference.outputs(asks[0])
            assert again.pool[0] is not None
            assert again.pool[0].pulled_tokens == len(begun) // BLOCK * BLOCK
            other = await pools.ask(Ask((*begun[:100], 7), GREEDY))
            assert other.tokens == reference.outputs(Ask((*begun[:100], 7), GREEDY))
            assert other.cached[0] == 96
            told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
            assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in asks]
            split = pools.of("decode")[0].settings.split
            assert split is not None
            assert (split.full, split.sliding, split.window) == (1, 1, 9)
            await pools.audit()
