"""Failures without a closed connection: engines that hang, paths on which no data arrives."""

import asyncio
import threading

import pytest

from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Start, executor, transport_of, until
from tests.live.slow_pools import ASKS, finish, slow_down
from tests.live.workload import Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

QUICK_PATHS = {"probe_period_s": 0.05, "probe_lost_s": 0.1, "link_period_s": 0.05, "link_misses": 200}


@pytest.mark.real_time
async def test_a_hanging_engine_is_left_and_what_it_says_later_changes_nothing(
    started: Start, reference: Reference
) -> None:
    pools = await started(
        "prefill", "decode", "decode", health={"step_stall_s": 3.0, "link_period_s": 0.1, "link_misses": 100}
    )
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


@pytest.mark.real_time
async def test_a_pair_whose_path_is_broken_is_avoided_and_all_others_go_on(
    started: Start, reference: Reference
) -> None:
    pools = await started("prefill", "prefill", "decode", health=QUICK_PATHS)
    (broken, _), (target,) = pools.of("prefill"), pools.of("decode")
    await asyncio.gather(*(pools.ask(ask) for ask in ASKS))
    assert broken.engine.snapshot(0.0).handoffs_out_total > 0
    replica = broken.place.replica
    transport_of(target)._faults = lambda peer, nbytes: None if peer == replica else 0.0
    path_faults = pools.backend.core.instances.path_fault
    await until(lambda: replica in path_faults(target.place.replica).lost, "the gateway knows")
    before = broken.engine.snapshot(0.0).handoffs_out_total
    await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)
    assert broken.engine.snapshot(0.0).handoffs_out_total == before
    assert target.facts()["handoff_failures_total"] == 0, "nothing was even tried"
    transport_of(target)._faults = None
    await until(lambda: not path_faults(target.place.replica).lost, "dummies have found it whole again")
    async with asyncio.timeout(
        PATIENCE_S
    ):  # an instance that looked slow because of a pause gets work once the measurement expires
        while broken.engine.snapshot(0.0).handoffs_out_total == before:
            await finish(pools, [asyncio.create_task(pools.ask(ask)) for ask in ASKS], reference)
