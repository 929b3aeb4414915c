"""Pools with slow or blocked steps, and four requests that must finish correctly in all cases."""

import asyncio
import threading
import time

from msgspec import structs

from serving.instance.live.instance import Instance
from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Pools, Told, executor
from tests.live.workload import GREEDY, Ask, Reference

ASKS = [Ask(tuple(range(start, start + 180)), structs.replace(GREEDY, max_tokens=60)) for start in (1, 30, 60, 90)]


def slowly(plan: StepPlan) -> None:
    """Make steps long enough for other actions during them."""
    time.sleep(0.02)


def slow_down(pools: Pools) -> None:
    for instance in pools.instances:
        executor(instance).before = slowly


def hold(instance: Instance, step: int) -> threading.Event:
    """Block the instance's engine in that step until the event is set."""
    go_on = threading.Event()

    def wait(plan: StepPlan) -> None:
        if executor(instance).steps >= step:
            go_on.wait(PATIENCE_S)

    executor(instance).before = wait
    return go_on


async def finish(pools: Pools, jobs: list[asyncio.Task[Told]], reference: Reference) -> None:
    """Assert that every request finishes as if undisturbed, and that all is idle then."""
    for instance in pools.instances:
        executor(instance).before = None
    told = await asyncio.wait_for(asyncio.gather(*jobs), PATIENCE_S)
    assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in ASKS]
    await pools.audit()
