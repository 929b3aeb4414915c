"""Series for Ray's board out of what real instances announce."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from serving.cluster.membership import Member
from serving.cluster.ray_metrics import announced_series, rank_place
from serving.instance.live.instance import Instance
from tests.live.harness import Pools, collect, small_config
from tests.live.workload import GREEDY, Ask, tokens

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


async def test_an_instance_shows_what_it_did(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint), shm) as pools:
        await pools.start("prefill", "decode")
        for _ in range(3):
            await collect(pools.submit(Ask(tokens(random.Random(1), 100), replace(GREEDY, max_tokens=5))))
        shown = {pool: numbers(pools.of(pool)[0]) for pool in ("prefill", "decode")}
        assert shown["prefill"]["serve_deployment_request_counter_total"] == 3
        assert shown["prefill"]["vllm:prefix_cache_queries_total"] == 300
        assert 0 < shown["prefill"]["vllm:prefix_cache_hits_total"] < 300
        assert shown["prefill"]["vllm:nixl_xfer_time_seconds_count"] == 0
        assert shown["decode"]["vllm:nixl_xfer_time_seconds_count"] == 3
        assert shown["decode"]["vllm:nixl_bytes_transferred_sum"] > 0
        assert shown["decode"]["vllm:nixl_num_failed_transfers"] == 0


def numbers(instance: Instance) -> dict[str, float]:
    """Samples by name."""
    place = instance.place
    member = Member(place.replica, place.pool, place.node, "127.0.0.1", 1, "first", instance.facts())
    series = announced_series(lambda: member, "m", rank_place(place.pool, place.replica))
    return {sample.name: sample.value for family in series for sample in family.samples}
