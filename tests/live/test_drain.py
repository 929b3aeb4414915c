"""Instances drain under load: their sequences continue on other instances, or in place; other roles serve an empty one.

Clients are unaffected: the same tokens, each once.
"""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from serving.config.kvcache import KvCacheConfig
from serving.instance.live.instance import Instance
from serving.values.sequence import PoolUse, SamplingParams
from serving.values.step_plan import StepPlan
from tests.kvpool.pool_cluster import PoolCluster
from tests.live.harness import PATIENCE_S, SECRET, Pools, Start, Told, collect, executor, small_config, until
from tests.live.workload import EOS, GREEDY, LETTERS, RECORD, Ask, Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

LONG = structs.replace(GREEDY, max_tokens=60)
VARIED = SamplingParams(
    max_tokens=60,
    temperature=0.9,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.2,
    presence_penalty=0.6,
    frequency_penalty=0.4,
    logit_bias=((5, 4.0), (9, -3.0)),
    seed=7,
    stop_token_ids=(EOS,),
    min_tokens=40,
    logprobs=2,
)
ASKS = [
    Ask(tuple(range(1, 100)), LONG),
    Ask(tuple(range(30, 200)), VARIED, n=2),
    Ask(tuple(range(60, 80)), structs.replace(LONG, logprobs=0)),
    Ask((90,), structs.replace(VARIED, seed=99)),
]

CONSTRAINED = [
    Ask(
        tuple(range(40, 90)),
        structs.replace(LONG, temperature=0.9, seed=3, grammar=LETTERS, stop_token_ids=(EOS,)),
        n=3,
    ),
    Ask(tuple(range(9, 70)), structs.replace(LONG, grammar=RECORD, stop_token_ids=(EOS,))),
]


def slowly(plan: StepPlan) -> None:
    """Make steps long enough for other actions during them."""
    time.sleep(0.02)


def slow_down(pools: Pools) -> None:
    for instance in pools.instances:
        executor(instance).before = slowly


def hurry(pools: Pools) -> None:
    for instance in pools.instances:
        executor(instance).before = None


def begin(pools: Pools, asks: list[Ask] = ASKS) -> list[asyncio.Task[Told]]:
    return [asyncio.create_task(pools.ask(ask)) for ask in asks]


async def finish(jobs: list[asyncio.Task[Told]], reference: Reference, asks: list[Ask] = ASKS) -> None:
    """Assert that all output is complete, as if undisturbed."""
    told = await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE_S)
    for ask, answer in zip(asks, told, strict=True):
        assert answer.tokens == reference.outputs(ask), ask


def generated(instance: Instance) -> int:
    return instance.engine.snapshot(0.0).generated_tokens_total


def failures(pools: Pools) -> list[int]:
    return [choice.journal.attempts.total for choice in pools.backend.core.choices.values()]


@pytest.mark.parametrize(("mode", "drafts"), [("disaggregated", 2), ("aggregated", 0)])
async def test_streams_go_on_at_another_instance(
    mode: str, drafts: int, checkpoint: Path, shm: Path, reference: Reference
) -> None:
    config = small_config(checkpoint, mode=mode, engine={"draft_tokens": drafts})
    asks = [*ASKS, *CONSTRAINED]
    async with Pools(config, shm) as pools:
        last = "decode" if mode == "disaggregated" else "aggregated"
        await pools.start(*(("prefill", last, last) if mode == "disaggregated" else (last, last)))
        slow_down(pools)
        jobs = begin(pools, asks)
        leaving, staying = pools.of(last)
        await until(lambda: generated(leaving) >= 10, "it decodes")
        await asyncio.wait_for(leaving.server.leave(0.0), PATIENCE_S)
        assert leaving.engine.idle()
        assert not all(job.done() for job in jobs)
        assert failures(pools) == [0] * len(failures(pools)), "to leave is no failure"
        before = generated(leaving)
        hurry(pools)
        await finish(jobs, reference, asks)
        assert generated(leaving) == before
        assert staying.engine.snapshot(0.0).handoffs_in_total > 0
        assert 0 < pools.backend.core.routes.moved[leaving.place.replica] <= sum(ask.n for ask in asks)
        await pools.audit()


async def test_streams_that_end_soon_are_not_moved(started: Start, reference: Reference) -> None:
    pools = await started("prefill", "decode", "decode")
    slow_down(pools)
    jobs = begin(pools)
    leaving = pools.of("decode")[0]
    await until(lambda: generated(leaving) >= 10, "it decodes")
    await asyncio.wait_for(leaving.server.leave(30.0), PATIENCE_S)
    await finish(jobs, reference)
    assert leaving.engine.snapshot(0.0).handoffs_out_total == 0
    await pools.audit()


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
async def test_the_only_instance_keeps_its_streams(
    started: Start, mode: str, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.instance.core.life.OFFER_PERIOD_S", 0.1)
    pools = await started(*(("prefill", "decode") if mode == "disaggregated" else ("aggregated",)))
    slow_down(pools)
    jobs = begin(pools)
    leaving = pools.instances[-1]
    await until(lambda: leaving.engine.snapshot(0.0).running >= 5, "all of it decodes here")
    gone = asyncio.create_task(leaving.server.leave(0.05))
    await until(lambda: leaving.engine.snapshot(0.0).handoffs_out_total >= 10, "it was offered twice")
    assert not gone.done()
    assert failures(pools) == [0] * 5
    hurry(pools)
    await finish(jobs, reference)
    await asyncio.wait_for(gone, PATIENCE_S)
    await pools.audit()


async def test_prompts_leave_a_prefill_instance(started: Start, reference: Reference) -> None:
    asks = [Ask(tuple(range(start, start + 200)), structs.replace(GREEDY, max_tokens=8)) for start in range(0, 100, 10)]
    pools = await started("prefill", "prefill", "decode")
    slow_down(pools)
    jobs = begin(pools, asks)
    leaving = pools.instances[0]
    await until(lambda: executor(leaving).steps >= 2, "it computes the second chunk")
    waiting = leaving.engine.snapshot(0.0).waiting
    assert waiting
    await asyncio.wait_for(leaving.server.leave(0.0), PATIENCE_S)
    assert not all(job.done() for job in jobs)
    assert leaving.engine.snapshot(0.0).prompt_tokens_total < 200 * len(asks) / 2
    hurry(pools)
    await finish(jobs, reference, asks)
    await pools.audit()


async def test_without_decode_instances_prefill_does_it_all(started: Start, reference: Reference) -> None:
    pools = await started("prefill", engine={"empty_role_s": 0.3})
    stand_in = pools.instances[0]
    await finish(begin(pools), reference)  # held first, then decoded in place
    assert stand_in.engine.snapshot(0.0).handoffs_out_total == 5
    await finish(begin(pools), reference)
    assert stand_in.engine.snapshot(0.0).handoffs_out_total == 5, "these are known to stay"
    await pools.audit()
    await pools.add("decode")
    await pools.linked()
    await finish(begin(pools), reference)
    assert pools.of("decode")[0].engine.snapshot(0.0).handoffs_in_total == 5, "new ones go there again"
    await pools.audit()


async def test_a_stand_in_that_leaves_gives_its_streams_to_another(started: Start, reference: Reference) -> None:
    """Prefill instances adopt no sequence: the other one recomputes the streams. The last one keeps them."""
    pools = await started("prefill", "prefill", engine={"empty_role_s": 0.1})
    slow_down(pools)
    jobs = begin(pools)
    leaving, staying = pools.instances
    await until(lambda: sum(map(generated, pools.instances)) >= 40, "both decode")
    assert leaving.engine.snapshot(0.0).running
    await asyncio.wait_for(leaving.server.leave(0.0), PATIENCE_S)
    assert not any(job.done() for job in jobs), "it left in the middle of them"
    assert failures(pools) == [0] * 5
    await until(lambda: staying.server.open_sequences == 5, "the other one has all of them")
    hurry(pools)
    await finish(jobs, reference)
    await pools.audit()


async def test_what_a_draining_instance_gives_while_it_moves_is_told_once(started: Start, reference: Reference) -> None:
    """From one instance to the next, each of which leaves as soon as it has produced a token."""
    ask = Ask((1, 2, 3), structs.replace(GREEDY, max_tokens=200, logprobs=1))
    pools = await started("prefill", "decode")
    slow_down(pools)
    task = asyncio.create_task(collect(pools.submit(ask)))
    moves = 0
    while not task.done():
        old = pools.of("decode")[-1]
        if not generated(old):
            await asyncio.sleep(0.002)
            continue
        executor(await pools.add("decode")).before = slowly if moves < 5 else None
        await pools.linked()
        leave = asyncio.create_task(old.server.leave(0.0))
        await asyncio.wait_for(leave, PATIENCE_S)
        pools.unlist(old)
        moves += 1
    assert (await task).tokens == reference.outputs(ask)
    assert moves >= 5
    await pools.audit()


async def test_the_pool_gets_what_an_instance_had_no_time_to_store(
    checkpoint: Path, shm: Path, reference: Reference
) -> None:
    config = replace(small_config(checkpoint), kvcache=KvCacheConfig(replicas=1, max_store_share=0.0))
    ask = Ask(tuple(range(200)), structs.replace(GREEDY, max_tokens=4))
    with PoolCluster(1, node="node", secret=SECRET, capacity_bytes=32 << 20) as servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            assert (await pools.ask(ask)).tokens == reference.outputs(ask)
            await pools.audit()
            await pools.retire(pools.instances[0])
            await pools.start("prefill")
            again = await pools.ask(ask)
            assert again.tokens == reference.outputs(ask)
            assert again.pool == [PoolUse(pulled_tokens=192)]
            await pools.audit()
