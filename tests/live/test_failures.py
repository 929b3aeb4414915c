"""Instances die, hang, corrupt and refuse; clients see a pause, each token once, and no state is leaked."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hardware.ub.copy import checksum
from serving.errors import EngineError, OverloadedError
from serving.ids import NodeId
from serving.instance.live.instance import Instance
from serving.instance.live.segment_reader import Extents, SegmentPlace
from serving.values.sequence import HandoffTicket
from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Pools, Start, collect, executor, small_config, transport_of, until
from tests.live.slow_pools import ASKS, finish, hold, slow_down
from tests.live.workload import Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


def told(pools: Pools, instance: Instance) -> int:
    """Number of tokens that the gateway has received of an instance's streams: fewer than its engine has produced."""
    journals = [choice.journal for choice in pools.backend.core.choices.values()]
    return sum(len(journal.output) for journal in journals if journal.at == instance.place.replica)


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
async def test_an_instance_dies_in_the_middle_of_prefill(
    mode: str, checkpoint: Path, shm: Path, reference: Reference
) -> None:
    async with Pools(small_config(checkpoint, mode=mode), shm) as pools:
        first = "prefill" if mode == "disaggregated" else "aggregated"
        await pools.start(*((first, first, "decode") if mode == "disaggregated" else (first, first)))
        victim = pools.instances[0]
        go_on = hold(victim, step=2)
        jobs = [asyncio.create_task(pools.ask(ask)) for ask in ASKS]
        await until(lambda: executor(victim).steps == 2, "its second chunk runs")
        assert 0 < victim.engine.snapshot(0.0).prompt_tokens_total < len(ASKS[0].prompt), "it is in the middle"
        await pools.kill(victim)
        go_on.set()
        await finish(pools, jobs, reference)


@pytest.mark.parametrize("mode", ["disaggregated", "aggregated"])
async def test_an_instance_dies_in_the_middle_of_decode(
    mode: str, checkpoint: Path, shm: Path, reference: Reference
) -> None:
    async with Pools(small_config(checkpoint, mode=mode), shm) as pools:
        last = "decode" if mode == "disaggregated" else "aggregated"
        await pools.start(*(("prefill", last, last) if mode == "disaggregated" else (last, last)))
        slow_down(pools)
        jobs = [asyncio.create_task(pools.ask(ask)) for ask in ASKS]
        victim = pools.of(last)[0]
        await until(lambda: told(pools, victim) >= 8, "the clients have some of its tokens")
        await pools.kill(victim)
        await finish(pools, jobs, reference)
        assert 0 < victim.engine.snapshot(0.0).generated_tokens_total < 60 * len(ASKS), "it was in the middle"
        (notice,) = pools.backend.losses.notices()
        assert (notice.kind, notice.pool, notice.replica) == ("died", last, victim.place.replica)
        assert 1 <= notice.streams <= len(ASKS)
        assert 8 <= notice.tokens < 60 * len(ASKS), "what the clients had by then"


async def test_prefill_dies_while_its_blocks_are_held(started: Start, reference: Reference) -> None:
    pools = await started("prefill")
    jobs = [asyncio.create_task(pools.ask(ask)) for ask in ASKS]
    await until(lambda: pools.instances[0].engine.snapshot(0.0).held == len(ASKS), "all wait for a decode instance")
    await pools.kill(pools.instances[0])
    await pools.add("prefill")
    await pools.add("decode")
    await finish(pools, jobs, reference)


@pytest.mark.parametrize("where", ["at the source", "on the way"])
async def test_a_damaged_block_is_noticed_and_computed_again(started: Start, where: str, reference: Reference) -> None:
    pools = await started("prefill", "decode")
    source, target = pools.instances
    damaged = damage_once(source) if where == "at the source" else damage_copy_once(target)
    told = await pools.ask(ASKS[0])
    assert damaged == [1]
    assert told.tokens == reference.outputs(ASKS[0])
    assert target.facts()["handoff_failures_total"] == 1
    assert source.engine.snapshot(0.0).handoffs_out_total == 2, "prefilled twice"
    await pools.audit()


def damage_once(instance: Instance) -> list[int]:
    """Change one byte of the first block that is registered, after its checksum was taken."""
    transport = transport_of(instance)
    register = transport.register
    damaged: list[int] = []

    def damaging(ticket_id: str, blocks: Any, hashes: Any, computed_tokens: int) -> HandoffTicket:
        ticket = register(ticket_id, blocks, hashes, computed_tokens)
        if not damaged:
            transport._block(blocks[0])[0] ^= 0xFF
            damaged.append(1)
        return ticket

    transport.register = damaging
    return damaged


def damage_copy_once(instance: Instance) -> list[int]:
    """Change one byte that the first pull reads."""
    transport = transport_of(instance)
    read = transport._read
    damaged: list[int] = []

    def damaging(node: NodeId, place: SegmentPlace, extents: Extents, targets: Sequence[memoryview]) -> Sequence[int]:
        digests = [*read(node, place, extents, targets)]
        if not damaged:
            targets[-1][-1] ^= 1
            digests[-1] = checksum(targets[-1])
            damaged.append(1)
        return digests

    transport._read = damaging
    return damaged


@pytest.mark.real_time
async def test_blocks_whose_lease_ran_out_are_computed_again(started: Start, reference: Reference) -> None:
    pools = await started("prefill", engine={"handoff_lease_s": 1.0, "prefix_reuse": False})
    source = pools.instances[0]
    job = asyncio.create_task(pools.ask(ASKS[0]))
    await until(lambda: source.engine.snapshot(0.0).handoffs_expired_total == 1, "the lease is over")
    assert source.engine.idle()
    arena = transport_of(source)._arena
    arena[:] = bytes(len(arena))  # another process's blocks now
    await pools.add("decode")
    assert (await job).tokens == reference.outputs(ASKS[0])
    assert source.engine.snapshot(0.0).handoffs_out_total >= 2
    await pools.audit()


@pytest.mark.parametrize("pool", ["prefill", "decode"])
async def test_a_step_that_fails_is_done_again_elsewhere(started: Start, pool: str, reference: Reference) -> None:
    pools = await started("prefill", "decode")
    failed: list[int] = []

    def fail_once(plan: StepPlan) -> None:
        if len(failed) < 1 and plan.step > 0:
            failed.append(plan.step)
            raise EngineError("the device is lost")

    executor(pools.of(pool)[0]).before = fail_once
    jobs = [asyncio.create_task(pools.ask(ask)) for ask in ASKS]
    told = await asyncio.gather(*jobs)
    assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in ASKS]
    assert failed
    await pools.audit()


async def test_steps_that_always_fail_end_in_an_error(started: Start) -> None:
    pools = await started("prefill", "decode")

    def fail(plan: StepPlan) -> None:
        raise EngineError("the device is lost")

    executor(pools.of("decode")[0]).before = fail
    with pytest.raises(EngineError, match=r"the device is lost; given up after 3 attempts"):
        await pools.ask(ASKS[0])
    await pools.audit()


async def test_a_full_gateway_refuses_and_says_when_to_come_back(started: Start) -> None:
    limits = {"max_running_sequences": 2, "max_queued_requests": 3}
    pools = await started("prefill", "decode", gateway=limits)
    slow_down(pools)
    jobs = [pools.submit(ASKS[0]) for _ in range(5)]
    assert pools.backend.counts() == {"running": 2, "queued": 3, "sequences": 2}
    with pytest.raises(OverloadedError) as caught:
        pools.submit(ASKS[0])
    assert caught.value.retry_after_s >= 1.0
    jobs[4].cancel()  # one that waits
    jobs.append(pools.submit(ASKS[0]))
    for instance in pools.instances:
        executor(instance).before = None
    told = await asyncio.gather(*(collect(job) for job in jobs))
    assert [len(answer.tokens[0]) for answer in told] == [60, 60, 60, 60, 0, 60]
    await pools.audit()


async def test_a_draining_prefill_pool_leaves_prompts_to_decode(started: Start, reference: Reference) -> None:
    pools = await started("prefill", "decode")
    pools.of("prefill")[0].server.begin_to_leave(math.inf)
    told = await asyncio.wait_for(pools.ask(ASKS[0]), PATIENCE_S)
    assert told.tokens == reference.outputs(ASKS[0])
    assert pools.backend.ready(), "as it was just now"
    await pools.audit()


async def test_a_gateway_that_vanishes_leaves_nothing(started: Start) -> None:
    pools = await started("prefill", "decode")
    slow_down(pools)
    other = pools.gateway("other")
    other.links.update(pools.members.values())
    await pools.linked(other)
    jobs = [other.submit(pools.job(ask)) for ask in ASKS]
    await until(lambda: pools.of("decode")[0].engine.snapshot(0.0).generated_tokens_total >= 4, "it decodes")
    assert sum(instance.server.open_sequences for instance in pools.instances) >= len(ASKS)
    for link in other.links.up():
        link.close("the process died")
    await pools.audit()
    other.close()
    for job in jobs:
        job.cancel()
