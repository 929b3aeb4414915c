"""Requests that wait at the gateway: for their turn, for an instance, for as long as was said."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from serving.errors import DeadlineError, OverloadedError, UnavailableError
from serving.gateway.core.waiting_room import applicant
from serving.ids import RequestId, SequenceId
from serving.values.jobs import GenerationJob
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.live.harness import Pools, collect, executor, small_config, until
from tests.live.workload import Ask, Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

ASKS = [Ask((n + 1, 7, 9, 11) * 6, SamplingParams(max_tokens=8, temperature=0.0)) for n in range(6)]


def starved(pools: Pools) -> bool:
    """Asked anew each time."""
    return pools.backend.starved


async def test_a_request_may_come_before_the_first_instance(checkpoint: Path, shm: Path, reference: Reference) -> None:
    async with Pools(small_config(checkpoint), shm) as pools:
        jobs = [pools.submit(ask) for ask in ASKS]
        assert pools.backend.counts() == {"running": 0, "queued": 6, "sequences": 0}
        await asyncio.sleep(0.2)
        requests, tokens, oldest_s = pools.backend.waiting()
        assert (requests, tokens) == (6, 6 * 24)
        assert 0.15 < oldest_s < 30.0
        assert starved(pools)
        await pools.start("prefill", "decode")
        told = await asyncio.gather(*(collect(job) for job in jobs))
        assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in ASKS]
        assert pools.backend.waiting() == (0, 0, 0.0)
        assert not starved(pools)
        await pools.audit()


async def test_without_any_instance_they_wait_so_long_and_no_longer(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint, gateway={"role_wait_s": 0.5}), shm) as pools:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(UnavailableError, match=r"no instance came up within 0\.5 s") as caught:
            await pools.ask(ASKS[0])
        assert 0.5 <= asyncio.get_running_loop().time() - begun < 60.0
        assert caught.value.retry_after_s > 0
        await pools.audit()


@pytest.mark.parametrize("why", ["no patience", "nothing was asked for"])
async def test_where_nothing_is_expected_they_are_refused_at_once(checkpoint: Path, shm: Path, why: str) -> None:
    sections: dict[str, Any] = {"prefill": {"replicas": 0}, "decode": {"replicas": 0}}
    if why == "no patience":
        sections = {"gateway": {"role_wait_s": 0.0}}
    async with Pools(small_config(checkpoint, **sections), shm) as pools:
        with pytest.raises(UnavailableError, match="none is expected"):
            pools.submit(ASKS[0])


async def test_too_many_that_wait_for_an_instance_are_refused_with_503(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint, gateway={"max_queued_requests": 2}), shm) as pools:
        jobs = [pools.submit(ask) for ask in ASKS[:2]]
        with pytest.raises(UnavailableError, match="too many wait for one") as caught:
            pools.submit(ASKS[2])
        assert caught.value.retry_after_s >= 1
        for job in jobs:
            job.cancel()
        await pools.audit()


async def test_a_deadline_that_passes_while_waiting_ends_the_wait(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint, gateway={"max_running_sequences": 1}), shm) as pools:
        await pools.start("prefill", "decode")
        for instance in pools.instances:
            executor(instance).before = lambda plan: time.sleep(0.05)
        first = pools.submit(Ask((1, 2, 3), SamplingParams(max_tokens=60, temperature=0.0)))
        late = pools.submit(ASKS[0], time_left_s=0.5)
        with pytest.raises(DeadlineError, match="still waiting for its turn"):
            await collect(late)
        assert not first.closed
        await collect(first)
        await pools.audit()


async def test_lower_priority_values_go_first_and_everybody_is_served(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint, gateway={"max_running_sequences": 1}), shm) as pools:
        await pools.start("prefill", "decode")
        order: list[int] = []

        async def served(priority: int) -> None:
            await collect(pools.submit(ASKS[0], priority=priority))
            order.append(priority)

        await asyncio.gather(*(asyncio.create_task(served(n)) for n in (0, 5, 3, -1, 9)))
        assert order == [0, -1, 3, 5, 9]
        await pools.audit()


@pytest.mark.parametrize(("keys", "told"), [(("one",), -7), (("one", "another"), 0)])
async def test_no_key_gets_before_anothers_streams_by_a_priority(
    checkpoint: Path, shm: Path, keys: tuple[str, ...], told: int
) -> None:
    """Instances order and preempt by priority and know no keys."""
    async with Pools(small_config(checkpoint, gateway={"api_keys": keys}), shm) as pools:
        await pools.start("prefill", "decode")
        generation = pools.submit(ASKS[0], priority=-7)
        assert [choice.journal.spec.priority for choice in pools.backend.core.choices.values()] == [told]
        await collect(generation)


async def test_a_prefill_instance_alone_serves_the_whole_request(
    checkpoint: Path, shm: Path, reference: Reference
) -> None:
    async with Pools(small_config(checkpoint, engine={"empty_role_s": 0.3}), shm) as pools:
        await pools.start("prefill")
        assert pools.backend.ready(), "what is sent now is served"
        first = [await pools.ask(ask) for ask in ASKS[:2]]
        await asyncio.sleep(0.5)
        later = [await pools.ask(ask) for ask in ASKS[2:4]]
        assert [told.tokens for told in (*first, *later)] == [reference.outputs(ask) for ask in ASKS[:4]]
        await pools.start("decode")
        await until(pools.backend.ready, "both roles are there")
        assert (await pools.ask(ASKS[4])).tokens == reference.outputs(ASKS[4])
        assert sum(i.engine.snapshot(0.0).handoffs_in_total for i in pools.of("decode")) == 1
        await pools.audit()


async def test_a_full_gateway_tells_when_to_come_back_and_means_it(checkpoint: Path, shm: Path) -> None:
    limits = {"max_running_sequences": 2, "max_queued_requests": 4}
    async with Pools(small_config(checkpoint, gateway=limits), shm) as pools:
        await pools.start("prefill", "decode")
        answers: list[int] = []

        async def client(ask: Ask) -> None:
            for attempt in range(4):
                try:
                    generation = pools.submit(ask)
                except OverloadedError as error:
                    await asyncio.sleep(error.retry_after_s)
                else:
                    await collect(generation)
                    answers.append(attempt)
                    return

        await asyncio.gather(*(client(Ask((n + 1, 5, 6) * 8, ASKS[0].sampling)) for n in range(12)))
        assert len(answers) == 12
        assert max(answers) <= 2
        await pools.audit()


async def test_nobody_claims_the_place_that_was_kept_for_another() -> None:
    spec = SequenceSpec(SequenceId("r/0"), (1, 2, 3), SamplingParams(max_tokens=4))
    jobs = [GenerationJob(RequestId("r"), (spec,), key=key) for key in ("one", "another", "one")]
    marks = [applicant(number, job, 0.0).mark for number, job in enumerate(jobs)]
    assert marks[0] == marks[2] != marks[1]
