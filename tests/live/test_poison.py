"""A request that kills every instance that computes it takes three instances down, but no other request."""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec import structs

from serving.errors import PoisonError
from serving.instance.live.instance import Instance
from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Pools, Start, executor
from tests.live.workload import GREEDY, Ask, Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

POISON = Ask((313, 1, 2, 4), structs.replace(GREEDY, max_tokens=30))
OTHERS = [Ask(tuple(range(start, start + 50)), structs.replace(GREEDY, max_tokens=60)) for start in range(0, 60, 10)]


def computes_marker(plan: StepPlan) -> bool:
    """Whether the prompt is fed, or only its first token if a step has no space for more."""
    return any(step.start == 0 and step.tokens[0] == POISON.prompt[0] for step in plan.sequences)


def decodes_marker(plan: StepPlan) -> bool:
    """Whether the token after it is to be sampled from a single fed one."""
    return any(
        step.sample is not None and tuple(step.sample.prompt) == POISON.prompt and len(step.tokens) == 1
        for step in plan.sequences
    )


class Deadly:
    """Pools whose instances die under the condition `deadly`, and are replaced as Serve would."""

    def __init__(self, pools: Pools, deadly: Callable[[StepPlan], bool]) -> None:
        self.pools = pools
        self.deadly = deadly
        self.died: list[Instance] = []
        self._loop = asyncio.get_running_loop()

    def arm(self, instance: Instance) -> None:
        executor(instance).before = functools.partial(self._before, instance)

    def _before(self, instance: Instance, plan: StepPlan) -> None:
        """Hook on the engine's thread."""
        time.sleep(0.003)
        if self.deadly(plan) and instance not in self.died:
            asyncio.run_coroutine_threadsafe(self._die(instance), self._loop).result(PATIENCE_S)

    async def _die(self, instance: Instance) -> None:
        self.died.append(instance)
        await self.pools.kill(instance)
        self.arm(await self.pools.add(instance.place.pool))


@pytest.mark.parametrize(
    ("roles", "deadly", "victims"),
    [
        (("prefill", "decode", "decode"), decodes_marker, "decode"),
        (("aggregated", "aggregated"), computes_marker, "aggregated"),
    ],
    ids=["decode", "aggregated"],
)
async def test_three_instances_die_and_all_others_get_their_answers(
    started: Start, roles: tuple[str, ...], deadly: Callable[[StepPlan], bool], victims: str, reference: Reference
) -> None:
    pools = await started(*roles)
    world = Deadly(pools, deadly)
    for instance in pools.instances:
        world.arm(instance)
    jobs = [asyncio.create_task(pools.ask(ask)) for ask in OTHERS]
    await asyncio.sleep(0.1)
    with pytest.raises(PoisonError, match="3 instances in a row"):
        await asyncio.wait_for(pools.ask(POISON), PATIENCE_S)
    told = await asyncio.gather(*jobs)
    assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in OTHERS]
    died = [instance.place.pool for instance in world.died]
    assert len(died) == 3
    kinds = Counter(notice.kind for notice in pools.backend.losses.notices())
    assert kinds == {"died": 3, "poison": 1}
    assert (died[0], died[2]) == (victims, roles[0]), "a trial is at who computes prompts"
    await pools.audit()


async def test_instances_that_die_together_condemn_nobody(started: Start, reference: Reference) -> None:
    """All of a host's instances die, one after the other, and their sequences move to the next of them each time."""
    pools = await started("prefill", "prefill", "prefill", "decode", gateway={"role_wait_s": 0.2})
    for instance in pools.instances:
        executor(instance).before = lambda _: time.sleep(0.05)
    jobs = [asyncio.create_task(pools.ask(ask)) for ask in OTHERS]
    await asyncio.sleep(0.02)
    for instance in list(pools.of("prefill")):
        await pools.kill(instance)
    await pools.add("prefill")
    told = await asyncio.gather(*jobs)
    assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in OTHERS]
    await pools.audit()
