"""Requests that wait at the gateway: for their turn, for an instance, for as long as configured."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from serving.errors import UnavailableError
from serving.values.sequence import SamplingParams
from tests.live.harness import Pools, Start, collect, small_config
from tests.live.workload import Ask, Reference

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

ASKS = [Ask((n + 1, 7, 9, 11) * 6, SamplingParams(max_tokens=8, temperature=0.0)) for n in range(6)]


def starved(pools: Pools) -> bool:
    """Whether it is starved, evaluated on each call."""
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
        with pytest.raises(UnavailableError, match=r"no instance became available within 0\.5 s") as caught:
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


@pytest.mark.parametrize("keys", [("one",), ("one", "another")])
async def test_no_key_gets_before_anothers_streams_by_a_priority(started: Start, keys: tuple[str, ...]) -> None:
    """Instances order by priority among the sequences of one key, which have a number (`line`) where keys share."""
    pools = await started("prefill", "decode", gateway={"api_keys": keys})
    generation = pools.submit(ASKS[0], priority=-7)
    (spec,) = [choice.journal.spec for choice in pools.backend.core.choices.values()]
    assert (spec.priority, spec.line > 0) == (-7, len(keys) > 1)
    await collect(generation)


async def test_too_many_that_wait_for_an_instance_are_refused_with_503(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint, gateway={"max_queued_requests": 2}), shm) as pools:
        jobs = [pools.submit(ask) for ask in ASKS[:2]]
        with pytest.raises(UnavailableError, match="too many wait for one") as caught:
            pools.submit(ASKS[2])
        assert caught.value.retry_after_s >= 1
        for job in jobs:
            job.cancel()
        await pools.audit()
