"""Instances are killed and freeze at random; for any request, clients get the output of an undisturbed run.

Tokens equal those of the plain generator. Log-probabilities equal the undisturbed run's up to the last bits: a token
that was decoded in that run may come from a longer pass in this one, over prompt and output, whose products are summed
in another order.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from serving.instance.live.instance import Instance
from serving.values.sequence import FinishReason, SamplingParams, TokenLogprobs
from serving.values.step_plan import StepPlan
from tests.cases.nightly import mostly_nightly
from tests.live.harness import PATIENCE_S, Pools, Start, executor, until
from tests.live.workload import EOS, GREEDY, LETTERS, RECORD, Ask, Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

TOLERANCE = 2e-5
"""Largest difference of a log-probability that is put down to the order of sums in float32."""

SEEDED = SamplingParams(max_tokens=90, temperature=0.9, top_p=0.95, seed=11, min_tokens=60, stop_token_ids=(EOS,))
ASKS = [
    Ask(tuple(range(1, 100)), structs.replace(GREEDY, max_tokens=90)),
    Ask(tuple(range(5, 60)), structs.replace(GREEDY, max_tokens=80, logprobs=3, prompt_logprobs=1)),
    Ask(tuple(range(30, 150)), SEEDED, n=3),
    Ask(tuple(range(3, 90)), structs.replace(SEEDED, seed=99, logprobs=2, prompt_logprobs=0), n=2),
    Ask(tuple(range(70, 90)), structs.replace(SEEDED, repetition_penalty=1.2, presence_penalty=0.6, logprobs=1)),
    Ask((90,), structs.replace(SEEDED, frequency_penalty=0.4, logit_bias=((5, 4.0), (9, -3.0)), top_k=40)),
    Ask(tuple(range(20, 70)), structs.replace(SEEDED, min_tokens=0, grammar=LETTERS), n=2),
    Ask(tuple(range(10, 80)), structs.replace(SEEDED, min_tokens=0, grammar=RECORD, temperature=1.5)),
    Ask(tuple(range(40, 90)), structs.replace(GREEDY, max_tokens=90, stop_token_ids=(17, 200), min_tokens=30)),
]


@dataclass
class Heard:
    """All that a client of one choice received."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    finish: list[FinishReason] = field(default_factory=list)


async def listen(pools: Pools, ask: Ask) -> list[Heard]:
    """Read one request to its end."""
    generation = pools.submit(ask)
    heard = [Heard() for _ in range(ask.n)]
    async with asyncio.timeout(PATIENCE_S):
        while updates := await generation.next():
            for update in updates:
                one = heard[update.index]
                assert not one.finish, "news after the end"
                one.tokens += update.news.tokens
                one.logprobs += update.news.logprobs
                one.prompt_logprobs += update.news.prompt_logprobs
                one.cached += [update.news.cached_tokens] if update.news.cached_tokens is not None else []
                one.finish += [update.news.finish_reason] if update.news.finish_reason is not None else []
    return heard


def assert_same(ask: Ask, heard: list[Heard], undisturbed: list[Heard], reference: Reference) -> None:
    """Assert that the output is complete, without duplicates or differences."""
    assert [one.tokens for one in heard] == reference.outputs(ask), ask
    for one, other in zip(heard, undisturbed, strict=True):
        assert one.finish == other.finish
        assert len(one.cached) == 1
        for mine, theirs in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
            assert [entry.token for entry in mine] == [entry.token for entry in theirs]
            for entry, same in zip(mine, theirs, strict=True):
                assert entry.logprob == pytest.approx(same.logprob, abs=TOLERANCE)
                assert [top for _, top in entry.top] == pytest.approx([top for _, top in same.top], abs=TOLERANCE)
        if ask.sampling.logprobs is not None:
            assert len(one.logprobs) == len(one.tokens)


def slowly(plan: StepPlan) -> None:
    """Make steps long enough for a kill."""
    time.sleep(0.004)


def outputs(pools: Pools) -> dict[str, int]:
    """Tokens so far of all unfinished choices."""
    return {name: len(choice.journal.output) for name, choice in pools.backend.core.choices.items()}


async def freeze(pools: Pools, victim: Instance) -> None:
    """Freeze an instance: it sends nothing, and its port still accepts; its observers replace it in the end."""
    pools.unlist(victim)
    for connection in victim.server._gateways:
        connection.send = lambda message: True  # type: ignore[method-assign]
    await until(lambda: pools.backend.links.link(victim.place.replica) is None, "its silence is noticed")
    await pools.kill(victim)


async def disturb(pools: Pools, jobs: list[asyncio.Task[list[Heard]]], rng: random.Random, most: int) -> int:
    """Kill or freeze one instance after another, and replace it, until the jobs are done. Returns: how many."""
    faults = 0
    while not all(job.done() for job in jobs) and faults < most:
        victim, since, more = rng.choice(pools.instances), outputs(pools), rng.randrange(1, 8)
        # A request hit repeatedly before its next token is considered the cause, which is another test.
        await until(
            lambda: all(told >= since.get(name, 0) + more for name, told in outputs(pools).items()),  # noqa: B023
            "all have gone on",
        )
        await (pools.kill if rng.random() < 0.7 else lambda one: freeze(pools, one))(victim)
        executor(await pools.add(victim.place.pool)).before = slowly
        faults += 1
    return faults


ROLES = (("prefill", "decode"), ("aggregated",))
WAYS = [(*engine, roles) for engine in (("torch", 0, 4), ("native", 2, 5)) for roles in ROLES]
SAME_AS = "tests/live/test_resume.py::test_whatever_was_asked_for_goes_on"


@pytest.mark.parametrize(("engine", "drafts", "most", "roles"), mostly_nightly(WAYS, WAYS[2:3], SAME_AS))
async def test_whatever_was_asked_for_goes_on(
    started: Start, engine: str, drafts: int, most: int, roles: tuple[str, ...], reference: Reference
) -> None:
    rng = random.Random(drafts)
    asks = ASKS if engine == "native" else ASKS[:4]
    pools = await started(
        *roles,
        *roles,
        engine={"executor": engine, "draft_tokens": drafts},
        health={"link_period_s": 0.05, "link_misses": 6},
    )
    undisturbed = [await listen(pools, ask) for ask in asks]
    for instance in pools.instances:
        executor(instance).before = slowly
    faults = 0
    while faults < 3:  # detecting silence takes a third of a second, and short outputs may finish in that time
        jobs = [asyncio.create_task(listen(pools, ask)) for ask in asks]
        faults += await disturb(pools, jobs, rng, most - faults)
        for ask, heard, plain in zip(asks, await asyncio.gather(*jobs), undisturbed, strict=True):
            assert_same(ask, heard, plain, reference)
    await pools.audit()
