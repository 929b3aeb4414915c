"""All traffic through a gateway's backend is counted, and a system scaled to zero counts as ready."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from serving.errors import LinkError, OverloadedError
from serving.gateway.live.traffic_report import MeteredBackend
from serving.values.signals import Traffic
from serving.values.traffic import BoardReply, GatewayReport, TrafficMeter
from tests.live.harness import Pools, collect, small_config, until
from tests.live.workload import GREEDY, Ask, tokens

pytestmark = pytest.mark.asyncio

BEGUN = {"prefill": 1, "decode": 1}


def metered(pools: Pools) -> MeteredBackend:
    """Limits that a busy machine keeps, too."""
    return MeteredBackend(pools.backend, TrafficMeter("g", 60.0, 60.0), BEGUN, waits=True)


def ask(length: int, output: int = 6) -> Ask:
    return Ask(tokens(random.Random(length), length), replace(GREEDY, max_tokens=output))


def report(backend: MeteredBackend) -> GatewayReport:
    return backend.report(asyncio.get_running_loop().time())


async def test_requests_are_counted_from_their_arrival_to_their_end(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint), shm) as pools:
        backend = metered(pools)
        await pools.start("prefill", "decode")
        generation = backend.submit(pools.job(ask(40)))
        early = report(backend)
        assert (early.running, early.traffic.arrived, early.traffic.arrived_tokens) == (1, 1, 40)
        assert early.traffic.finished == early.traffic.generated_tokens == 0
        await collect(generation)
        again = backend.submit(pools.job(ask(40)))
        await collect(again)
        told = report(backend)
        assert told.running == 0
        assert told.traffic == Traffic(
            arrived=2, arrived_tokens=80, uncached_tokens=40 + 40 - 32, finished=2, generated_tokens=12,
            ttft_met=2, tpot_met=2,
        ), "two blocks of 16 tokens were known the second time"  # fmt: skip
        assert sum(told.ttft) == sum(told.tpot) == 2
        left = backend.submit(pools.job(ask(50, output=900)))
        left.cancel()
        assert report(backend).traffic.finished == 3
        await pools.audit()


async def test_who_waits_for_an_instance_is_seen(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint), shm) as pools:
        backend = metered(pools)
        generation = backend.submit(pools.job(ask(30)))
        await until(backend.starved, "somebody starves")
        told = report(backend)
        assert (told.starved, told.traffic.queued, told.traffic.queued_tokens) == (True, 1, 30)
        assert told.traffic.oldest_wait_s >= 0
        await pools.start("prefill", "decode")
        await collect(generation)
        assert not backend.starved()
        assert report(backend).traffic.queued == 0


async def test_refusals_are_counted(checkpoint: Path, shm: Path) -> None:
    config = small_config(checkpoint, gateway={"max_queued_requests": 0, "max_running_sequences": 1})
    async with Pools(config, shm) as pools:
        backend = metered(pools)
        await pools.start("prefill", "decode")
        first = backend.submit(pools.job(ask(30, output=300)))
        with pytest.raises(OverloadedError):
            backend.submit(pools.job(ask(30)))
        told = report(backend).traffic
        assert (told.arrived, told.finished, told.rejected) == (2, 1, 1), "who is refused came, and is gone"
        first.cancel()


async def test_counts_are_those_of_all_gateways(checkpoint: Path, shm: Path) -> None:
    async with Pools(small_config(checkpoint), shm) as pools:
        backend = metered(pools)
        assert (backend.gateways, backend.counts()) == (1, {"running": 0, "queued": 0, "sequences": 0})
        backend.on_reply(BoardReply({"decode": 7}, others=2, others_running=3, others_queued=4))
        assert (backend.gateways, backend.counts()) == (3, {"running": 3, "queued": 4, "sequences": 0})
        assert backend.targets == {"prefill": 1, "decode": 7}
        for now in (10.0, 12.0):
            backend.unheard(now)
        assert backend.board_silent_s(15.0) == 5.0
        backend.on_reply(BoardReply({"decode": 7}, others=2, others_running=3, others_queued=4))
        assert backend.board_silent_s(16.0) is None
        await pools.start("prefill", "decode")
        left = backend.submit(pools.job(ask(50, output=900)))
        assert backend.counts()["running"] == 4
        left.cancel()


def too_large() -> dict[str, Any]:
    raise LinkError("too large")


async def test_a_completion_that_was_read_is_counted_when_its_instances_are_asked(checkpoint: Path, shm: Path) -> None:
    """Whatever the age of their announcement, and while other requests keep their engines busy."""
    async with Pools(small_config(checkpoint), shm) as pools:
        await pools.start("prefill", "decode")
        links = {link.replica: link for link in pools.backend.links.up()}
        prefill, decode = (links[one.place.replica] for one in pools.instances)
        long = pools.submit(ask(20, output=900))
        for number in range(1, 9):
            await collect(pools.submit(ask(10 + number)))
            await pools.backend.links.ask_facts()
            computed = prefill.facts["prompt_tokens_total"]
            assert computed == 20 + sum(10 + one for one in range(1, number + 1))
            assert decode.facts["generated_tokens_total"] >= 5 * number
            assert decode.facts["handoffs_in_total"] >= number
        long.cancel()
        await pools.audit()
        pools.instances[0].server.facts = too_large
        pools.instances[1].server.facts = lambda: {"steps_total": 1}
        await pools.backend.links.ask_facts()
        assert (prefill.facts, decode.facts) == ({}, {"steps_total": 1}), "no link is lost for it"
