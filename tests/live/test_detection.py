"""Failures that no closed connection tells: engines that hang, paths on which nothing arrives."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from serving.injected_faults import FaultWriter, InjectedFault, faults_path, session_of
from serving.values.link_health import PathTrouble
from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Pools, executor, small_config, until
from tests.live.slow_pools import ASKS, finish, slow_down
from tests.live.workload import Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

QUICK_PATHS = {"probe_period_s": 0.05, "probe_lost_s": 0.1, "link_period_s": 0.05, "link_misses": 200}


async def test_a_hanging_engine_is_left_and_what_it_says_later_changes_nothing(
    checkpoint: Path, shm: Path, reference: Reference
) -> None:
    config = small_config(checkpoint, health={"step_stall_s": 3.0, "link_period_s": 0.1, "link_misses": 100})
    async with Pools(config, shm) as pools:
        await pools.start("prefill", "decode", "decode")
        slow_down(pools)
        jobs = [asyncio.create_task(pools.ask(ask)) for ask in ASKS]
        frozen = pools.of("decode")[0]
        await until(lambda: frozen.engine.snapshot(0.0).generated_tokens_total >= 4, "it decodes")
        go_on = threading.Event()

        def hang(plan: StepPlan) -> None:
            go_on.wait(PATIENCE_S)

        executor(frozen).before = hang
        links, replica = pools.backend.links, frozen.place.replica
        try:
            told = await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE_S)
            assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in ASKS]
            assert not go_on.is_set(), "they ended although it still hangs"
            assert links.link(replica) is None, "its shell answers, but nothing is sent there"
        finally:
            go_on.set()
        await until(lambda: links.link(replica) is not None, "it moves again, and is used again")
        await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)


async def test_a_pair_whose_path_is_broken_is_avoided_and_all_others_go_on(
    checkpoint: Path, shm: Path, reference: Reference
) -> None:
    async with Pools(small_config(checkpoint, health=QUICK_PATHS), shm) as pools:
        await pools.start("prefill", "prefill", "decode")
        (broken, _), (target,) = pools.of("prefill"), pools.of("decode")
        await asyncio.gather(*(pools.ask(ask) for ask in ASKS))
        assert broken.engine.snapshot(0.0).handoffs_out_total > 0
        replica = broken.place.replica
        target._transport._faults = lambda peer, nbytes: None if peer == replica else 0.0
        troubles = pools.backend.core.instances.trouble
        await until(lambda: replica in troubles(target.place.replica).lost, "the gateway knows")
        before = broken.engine.snapshot(0.0).handoffs_out_total
        await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)
        assert broken.engine.snapshot(0.0).handoffs_out_total == before
        assert target.facts()["handoff_failures_total"] == 0, "nothing was even tried"
        target._transport._faults = None
        await until(lambda: not troubles(target.place.replica).lost, "dummies have found it whole again")
        async with asyncio.timeout(PATIENCE_S):  # one that a pause made look slow gets work once that is forgotten
            while broken.engine.snapshot(0.0).handoffs_out_total == before:
                await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)


async def test_a_path_that_breaks_under_way_costs_time_and_nothing_else(
    checkpoint: Path, shm: Path, reference: Reference
) -> None:
    async with Pools(small_config(checkpoint, health=QUICK_PATHS), shm) as pools:
        await pools.start("prefill", "decode", "decode")
        source = pools.of("prefill")[0].place.replica
        cut, _ = pools.of("decode")
        cut._transport._faults = lambda peer, nbytes: None if peer == source else 0.0
        await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)
        assert cut.facts()["handoff_failures_total"] > 0


async def test_a_slow_link_that_chaos_asks_for_is_noticed_by_dummies_and_avoided(
    checkpoint: Path, shm: Path, reference: Reference
) -> None:
    health = {**QUICK_PATHS, "probe_late_s": 0.3, "probe_lost_s": 10.0}
    async with Pools(small_config(checkpoint, health=health, chaos={"enabled": True}), shm) as pools:
        await pools.start("prefill", "decode", "decode")
        source = pools.of("prefill")[0].place.replica
        await asyncio.gather(*(pools.ask(ask) for ask in ASKS))
        slow, other = pools.of("decode")
        assert slow.engine.snapshot(0.0).handoffs_in_total > 0, "its path is known"
        writer = FaultWriter(faults_path(shm, session_of(slow.place.segment_path.name)))
        end = time.monotonic() + PATIENCE_S
        writer.add(InjectedFault(1, "slow_link", slow.place.replica, end, delay_s=0.4))
        troubles = pools.backend.core.instances.trouble
        await until(lambda: troubles(slow.place.replica).late == (source,), "the gateway knows")
        assert troubles(other.place.replica) == PathTrouble(), "a slow link is that of one puller"
        before = slow.engine.snapshot(0.0).handoffs_in_total
        await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)
        assert slow.engine.snapshot(0.0).handoffs_in_total == before
        writer.clear()
        await until(lambda: not troubles(slow.place.replica).late, "dummies are prompt again")
