"""Time lines of real pools: every duration is measured where it happened, and the parts sum to the whole."""

import asyncio
import random
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from serving.gateway.core import timeline as t
from serving.gateway.core.route_decision import InstanceView
from serving.gateway.core.timeline import Answered, RequestTimes
from serving.values.step_plan import StepPlan
from tests.live.harness import PATIENCE_S, Pools, Start, collect, executor, small_config, until
from tests.live.workload import GREEDY, Ask, tokens

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


PATIENT = {"link_misses": 600, "step_stall_s": PATIENCE_S}
"""On a busy machine no instance may be considered frozen."""


async def timed(pools: Pools, ask: Ask) -> RequestTimes:
    """Send a request, and read its time line as the HTTP side would store it."""
    loop = asyncio.get_running_loop()
    arrived = loop.time()
    generation = pools.submit(ask)
    await collect(generation)
    generation.answered(Answered(arrived, loop.time(), "stop"))
    times = pools.backend.timelines.shelf.find(generation.job.request_id, None)
    assert times is not None
    return times


def assert_whole(times: RequestTimes) -> None:
    for choice in times.choices:
        assert abs(sum(part.seconds for part in choice.parts) - times.total_s) < 1e-6


def kinds(times: RequestTimes) -> set[str]:
    return {part.kind for choice in times.choices for part in choice.parts}


async def test_a_request_that_crosses_hosts(checkpoint: Path, shm: Path) -> None:
    rng = random.Random(1)
    async with Pools(small_config(checkpoint, health=PATIENT), shm, nodes=("left", "right")) as pools:
        pools.backend.hosts = {"left": "n0", "right": "n1"}
        await pools.start("prefill", "decode")
        ask = Ask(tokens(rng, 200), replace(GREEDY, max_tokens=80), n=2)
        times = await timed(pools, ask)
        assert_whole(times)
        assert {t.PREFILL, t.HANDOFF, t.DECODE} <= kinds(times)
        for choice in times.choices:
            chunks = [part for part in choice.parts if part.kind == t.PREFILL]
            assert {part.host for part in chunks} == {"n0"}
            assert all(0 < part.tokens <= 64 for part in chunks)
            (handoff,) = [part for part in choice.parts if part.kind == t.HANDOFF]
            assert (handoff.source, handoff.host) == ("n0", "n1")
            assert handoff.nbytes > 0
            decode = [part for part in choice.parts if part.kind == t.DECODE]
            assert sum(part.tokens for part in decode) == choice.tokens - 1 == 79
            assert {part.host for part in decode} == {"n1"}
        fed = [sum(part.tokens for part in choice.parts if part.kind == t.PREFILL) for choice in times.choices]
        assert max(fed) == 200, "the other one finds its beginning cached"
        assert times.cause


async def test_a_request_that_is_resumed(started: Start) -> None:
    rng = random.Random(3)
    pools = await started("prefill", "decode", "decode")
    first, gone, waiting = pools.of("decode")[0], threading.Event(), list[StepPlan]()

    def wait(plan: StepPlan) -> None:
        waiting.append(plan)
        gone.wait(PATIENCE_S)

    executor(first).before = wait
    asking = [
        asyncio.create_task(timed(pools, Ask(tokens(rng, 30), replace(GREEDY, max_tokens=400)))) for _ in range(6)
    ]
    await until(lambda: bool(waiting), "somebody decodes there")
    await pools.kill(first)
    gone.set()
    found = await asyncio.gather(*asking)
    for times in found:
        assert_whole(times)
    resumed = [times for times in found if times.resumed]
    assert resumed
    assert pools.backend.timelines.shelf.choose("resumed", 9, None) == sorted(resumed, key=lambda one: -one.arrived)


async def test_without_time_lines_instances_tell_no_durations(started: Start) -> None:
    pools = await started("prefill", "decode", gateway={"timelines": 0})
    generation = pools.submit(Ask(tokens(random.Random(4), 30)))
    await collect(generation)
    generation.answered(Answered(0.0, 1.0, "stop"))
    assert generation.times is None
    assert len(pools.backend.timelines.shelf) == 0


@pytest.mark.parametrize("preferred", [False, True])
async def test_a_handoff_stays_on_its_host_where_that_is_preferred(
    checkpoint: Path, shm: Path, preferred: bool
) -> None:
    rng = random.Random(5)
    serving = {"handoff": "prefer_host"} if preferred else {}
    nodes = ("left", "left", "right")
    async with Pools(small_config(checkpoint, serving=serving, health=PATIENT), shm, nodes=nodes) as pools:
        pools.backend.hosts = {"left": "n0", "right": "n1"}
        await pools.start("prefill", "decode", "decode")
        hosts = list[str]()
        for _ in range(4):
            await until(lambda: all(_is_idle(view) for view in pools.backend.core.instances.views()), "all are equal")
            times = await timed(pools, Ask(tokens(rng, 20), replace(GREEDY, max_tokens=3)))
            hosts += [part.host for part in times.choices[0].parts if part.kind == t.HANDOFF]
        assert len(hosts) == 4
        assert set(hosts) == ({"n0"} if preferred else {"n0", "n1"})


def _is_idle(view: InstanceView) -> bool:
    """Whether an instance has reported that it is idle, and nothing was sent to it since."""
    return view.sequences == view.reserved_sequences == 0 and view.kv_blocks_free == view.kv_blocks_total
