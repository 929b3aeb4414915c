"""Several gateways on the same instances: what each knows is old and only its own, and yet they share evenly."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serving.gateway.live.backend import LiveBackend
from serving.values.sequence import SamplingParams
from tests.live.harness import Pools, collect, small_config, until
from tests.live.workload import Ask, Reference, tokens

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


@asynccontextmanager
async def gateways(pools: Pools, count: int) -> AsyncIterator[list[LiveBackend]]:
    """Linked to everybody, and told by every instance how many they are."""
    made = [pools.gateway(f"gateway-{n}") for n in range(count)]
    for one in made:
        one.links.update(pools._members.values())
    await pools.linked(*made)

    def counted() -> bool:
        links = [one.links.link(replica) for one in made for replica in pools._members]
        return all(link is not None and link.status is not None and link.status.gateways == count for link in links)

    await until(counted, "every instance knows of all gateways")
    try:
        yield made
    finally:
        for one in made:
            one.close()


@pytest.mark.real_time
@pytest.mark.parametrize("routing", ["load", "power_of_two"])
async def test_a_burst_at_four_gateways_does_not_herd(
    checkpoint: Path, shm: Path, reference: Reference, routing: str
) -> None:
    rng = random.Random(3)
    asks = [Ask(tokens(rng, 40), SamplingParams(max_tokens=3, temperature=0.0)) for _ in range(200)]
    async with Pools(small_config(checkpoint, gateway={"routing": routing}), shm) as pools:
        await pools.start(*["prefill"] * 4, "decode", "decode")
        pools.backend.close()
        async with gateways(pools, 4) as made:
            jobs = [made[n % 4].submit(pools.job(ask)) for n, ask in enumerate(asks)]  # no gateway hears anything
            views = [view for one in made for view in one.core.instances.views()]
            sent = [view.reserved_sequences for view in views]
            assert sum(sent) == 200, "all of it was decided before the next status"
            told = await asyncio.gather(*(collect(job) for job in jobs))
            assert [answer.tokens for answer in told[:20]] == [reference.outputs(ask) for ask in asks[:20]]
            shares = [i.engine.snapshot(0.0).prompt_tokens_total for i in pools.of("prefill")]
            assert max(shares) <= 1.3 * sum(shares) / 4, shares
            took = [i.engine.snapshot(0.0).handoffs_in_total for i in pools.of("decode")]
            assert sum(took) == 200
            assert max(took) <= 1.8 * 100, took  # handoffs trickle in, and how stale views are is the machine's doing
