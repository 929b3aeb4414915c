"""A fault has the same outcome live and in virtual time: finished, failed and recomputed requests, and number of
tokens.

Both sides have the same configuration and requests. The moment is defined by events, not by the clock:
every stream has started, none is near its end.
"""

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.kvcache import KvCacheConfig
from serving.config.serve import ServeConfig
from serving.errors import ServingError
from serving.gateway.live.generation import LiveGeneration
from serving.instance.live.segment_reader import SegmentReader
from serving.values.sequence import SamplingParams
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream, TraceRequest
from tests.kvpool.pool_cluster import PoolCluster
from tests.live import harness
from tests.live.harness import SECRET, Pools, Start, executor, small_config, until
from tests.live.workload import Ask, tokens
from tests.virtual.core.case import SHIPPED
from tests.virtual.core.outcome import Seen, seen
from tests.virtual.core.scripted_scaler import ScriptedScaler

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

REQUESTS, PROMPT, ANSWER = 6, 40, 300
SAMPLING = SamplingParams(max_tokens=ANSWER, min_tokens=ANSWER, temperature=0.0)


def calm(requests: int = REQUESTS) -> Seen:
    """Outcome of a run without faults."""
    return Seen(requests, 0, 0, requests * ANSWER)


def configuration(checkpoint: Path, prefills: int = 1, decodes: int = 1, both: int = 0, **sections: Any) -> ServeConfig:
    """Two hosts of eight NPUs for each instance: none shares a host with another one.

    Args:
        both: aggregated instances, in place of the others.
    """
    mode = "aggregated" if both else "disaggregated"
    config = small_config(checkpoint, mode=mode, engine={"empty_role_s": 0.1}, autoscaler={"period_s": 0.1}, **sections)
    node = replace(config.cluster.nodes[0], npus=16 * (both or prefills + decodes))
    return replace(
        config,
        cluster=replace(config.cluster, nodes=(node,)),
        prefill=replace(config.prefill, npus_per_instance=16, replicas=prefills),
        decode=replace(config.decode, npus_per_instance=16, replicas=decodes),
        aggregated=replace(config.aggregated, npus_per_instance=16, replicas=max(1, both)),
    )


# ---- virtual ---------------------------------------------------------------------------------------------------------


def played(
    config: ServeConfig, *faults: Fault, late: float | None = None, scaler: ScriptedScaler | None = None
) -> Seen:
    """One run in virtual time.

    Args:
        late: when as many requests arrive again; None = never.
    """
    return seen(simulate(_large(config), _load(late), faults=faults, scaler=scaler, check=True))


def _large(config: ServeConfig) -> ServeConfig:
    """The same with the shipped model: virtual dies have all of their memory, which the small one cuts into millions
    of blocks.
    """
    return replace(config, model=SHIPPED.model)


def _load(late: float | None = None) -> RequestStream:
    arrivals = [0.0] * REQUESTS + ([] if late is None else [late] * REQUESTS)
    blocks = tuple((n,) for n in range(REQUESTS)) * 2
    made = [TraceRequest(at, PROMPT, ANSWER, one) for at, one in zip(arrivals, blocks, strict=False)]
    return RequestStream("by hand", made, count=len(made), duration_s=arrivals[-1])


def while_all_decode(config: ServeConfig) -> float:
    """A moment of the run without faults at which every request has started and none is near its end [s]."""
    rows = simulate(_large(config), _load()).requests
    begun, ended = max(rows.first_token_s), min(rows.finish_s)
    assert begun < ended
    return begun + 0.2 * (ended - begun)


def fault(kind: FaultKind, target: str, at_s: float, factor: float = 0.0) -> Fault:
    """A fault that outlasts the run."""
    return Fault(Seconds(at_s), kind, target, Seconds(300.0), factor)


# ---- live ------------------------------------------------------------------------------------------------------------


def asks(seed: int = 1) -> list[Ask]:
    """Requests of the same lengths as the virtual ones."""
    rng = random.Random(seed)
    return [Ask(tokens(rng, PROMPT), SAMPLING) for _ in range(REQUESTS)]


async def _read(generation: LiveGeneration, counts: list[int], index: int) -> tuple[bool, bool]:
    """Read a request. Returns: whether it finished, and whether it was resumed. Effects: counts its tokens."""
    resumed = False
    try:
        while updates := await generation.next():
            for update in updates:
                counts[index] += len(update.news.tokens)
                resumed = resumed or update.resumptions > 0
    except ServingError:
        return False, resumed
    return True, resumed


async def told(generations: Sequence[LiveGeneration], counts: list[int] | None = None) -> Seen:
    """Outcome of these requests, read to their ends.

    Args:
        counts: tokens of each so far.
    """
    counts = [0] * len(generations) if counts is None else counts
    async with asyncio.timeout(harness.PATIENCE_S):
        read = await asyncio.gather(*(_read(one, counts, index) for index, one in enumerate(generations)))
    finished = sum(one[0] for one in read)
    return Seen(finished, len(read) - finished, sum(one[1] for one in read), sum(counts))


async def met_live(pools: Pools, misfortune: Callable[[Pools], Awaitable[None]]) -> Seen:
    """Inject the fault while every stream is being decoded.

    And while the gateway knows: what an instance has adopted but not reported yet goes back without a resumption.
    """
    _pace(pools, 0.01)
    counts = [0] * REQUESTS
    reading = asyncio.create_task(told([pools.submit(ask) for ask in asks()], counts))
    await until(lambda: min(counts) > 1 and _decoding(pools) == REQUESTS, "all are being decoded")
    await misfortune(pools)
    _pace(pools, 0.0)
    return await reading


def _decoding(pools: Pools) -> int:
    """Sequences that decode, so that one token each is to be computed; 0 while more are."""
    snapshots = [one.engine.snapshot(0.0) for pool in ("decode", "aggregated") for one in pools.of(pool)]
    running = sum(one.running for one in snapshots)
    return 0 if sum(one.queued_tokens for one in snapshots) > running else running


def _pace(pools: Pools, seconds: float) -> None:
    for instance in pools.instances:
        executor(instance).before = lambda _: time.sleep(seconds)


# ---- the same of both ------------------------------------------------------------------------------------------------


async def test_nothing_happens(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint)
    pools = await started("prefill", "decode", config=config)
    assert await told([pools.submit(ask) for ask in asks()]) == calm() == played(config)
    await pools.audit()


async def test_the_decode_pool_is_lost(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint)
    pools = await started("prefill", "decode", config=config)
    live = await met_live(pools, lambda pools: pools.kill(pools.of("decode")[0]))
    for kind, target in ((FaultKind.NODE, "n2"), (FaultKind.KILL, "decode0")):
        virtual = played(config, fault(kind, target, while_all_decode(config)))
        assert live == virtual == replace(calm(), resumed=REQUESTS)
    await pools.audit()


@pytest.mark.real_time
async def test_an_instance_is_frozen(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint, health={"step_stall_s": 0.5, "step_factor": 1.5})
    pools = await started("prefill", "decode", config=config)
    go_on = threading.Event()

    async def hang(pools: Pools) -> None:
        executor(pools.of("decode")[0]).before = lambda _: go_on.wait(harness.PATIENCE_S)  # type: ignore[assignment]  # its result is ignored
        await until(lambda: pools.backend.links.link(replica) is None, "it was noticed")

    replica = pools.of("decode")[0].place.replica
    try:
        live = await met_live(pools, hang)
    finally:
        go_on.set()
    virtual = played(config, fault(FaultKind.FREEZE, "decode0", while_all_decode(config)))
    assert live == virtual == replace(calm(), resumed=REQUESTS)
    await pools.audit()


async def test_the_prefill_pool_is_lost(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint)
    pools = await started("prefill", "decode", config=config)
    streams = await met_live(pools, lambda pools: pools.kill(pools.of("prefill")[0]))
    assert streams == calm(), "those do not need it any more"
    live = await told([pools.submit(ask) for ask in asks(2)])
    lost_at = while_all_decode(config)
    for kind, target in ((FaultKind.NODE, "n0"), (FaultKind.KILL, "prefill0")):
        virtual = played(config, fault(kind, target, lost_at), late=2 * lost_at)
        assert virtual == calm(2 * REQUESTS)
    assert live == calm(), "decode instances compute prompts, too"
    await pools.audit()


@pytest.mark.nightly("tests/live/test_drain.py::test_streams_go_on_at_another_instance")
async def test_an_instance_is_drained(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint, decodes=2)
    pools = await started("prefill", "decode", "decode", config=config)
    live = await met_live(pools, lambda pools: pools.retire(pools.of("decode")[0], 0.0))
    scaler = ScriptedScaler([(0.0, "decode", 1)])
    assert live == calm() == played(config, scaler=scaler)
    assert scaler.seen, "it was drained while requests ran"
    await pools.audit()


async def test_prefill_is_scaled_down(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint, prefills=2)
    pools = await started("prefill", "prefill", "decode", config=config)
    _pace(pools, 0.01)
    generations = [pools.submit(ask) for ask in asks()]
    await pools.retire(pools.of("prefill")[0], 0.0)
    _pace(pools, 0.0)
    scaler = ScriptedScaler([(0.0, "prefill", 1)])
    assert await told(generations) == calm() == played(config, scaler=scaler)
    assert scaler.seen[-1].pool("prefill").running == 1
    await pools.audit()


async def test_an_aggregated_instance_is_lost(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint, both=2)
    pools = await started("aggregated", "aggregated", config=config)
    live = await met_live(pools, lambda pools: pools.kill(pools.of("aggregated")[0]))
    for kind, target in ((FaultKind.NODE, "n0"), (FaultKind.KILL, "aggregated0")):
        virtual = played(config, fault(kind, target, while_all_decode(config)))
        assert live == virtual == replace(calm(), resumed=REQUESTS // 2)
    await pools.audit()


async def test_one_gateway_of_two_is_lost(started: Start, checkpoint: Path) -> None:
    config = configuration(checkpoint, gateway={"replicas": 2})
    pools = await started("prefill", "decode", config=config)
    _pace(pools, 0.01)
    other = pools.gateway("other")
    other.links.update(pools.members.values())
    await pools.linked(other)
    half = REQUESTS // 2
    generations = [pools.submit(ask) for ask in asks()[:half]]
    generations += [other.submit(pools.job(ask)) for ask in asks()[half:]]
    await until(lambda: _decoding(pools) == REQUESTS, "all are being decoded")
    other.end_all("the process is gone")  # as signalled by its clients' connections
    other.close()
    _pace(pools, 0.0)
    live = await told(generations)
    for kind in (FaultKind.GATEWAY, FaultKind.KILL_PART):
        virtual = played(config, fault(kind, "gateway1", while_all_decode(config)))
        assert (live.finished, live.failed, live.resumed) == (half, half, 0)
        assert (virtual.finished, virtual.failed, virtual.resumed) == (half, half, 0)
        assert half * ANSWER <= min(live.tokens, virtual.tokens)
        assert max(live.tokens, virtual.tokens) < REQUESTS * ANSWER
    await pools.audit()


@pytest.mark.nightly("tests/live/test_same_outcome.py::test_nothing_happens")
async def test_a_link_is_saturated(started: Start, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = SegmentReader.read

    def slowly(*where: Any) -> list[int]:
        time.sleep(0.2)
        return read(*where)

    monkeypatch.setattr(SegmentReader, "read", slowly)
    config = configuration(checkpoint)
    pools = await started("prefill", "decode", config=config, nodes=("a", "b"))
    live = await told([pools.submit(ask) for ask in asks()])
    dies = [
        fault(FaultKind.RDMA_LINK, f"n{n // 8}.npu{n % 8}.die{die}", 0.0, 0.01) for n in range(16) for die in range(2)
    ]
    assert live == calm() == played(config, *dies)
    await pools.audit()


@pytest.mark.nightly("tests/live/test_kvcache_pool.py::test_a_conversation_goes_on_while_servers_die_and_come")
async def test_a_memory_server_is_lost(checkpoint: Path, shm: Path) -> None:
    config = replace(configuration(checkpoint), kvcache=KvCacheConfig(replicas=2))
    servers = PoolCluster(2, node="node", secret=SECRET, capacity_bytes=32 << 20)
    with servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("prefill", "decode")
            live = await met_live(pools, _lose_a_server(servers))
            again = await told([pools.submit(ask) for ask in asks()])
            lost_at = while_all_decode(config)
            assert live == again == calm()
            for kind in (FaultKind.MEMORY_SERVER, FaultKind.KILL):
                assert played(config, fault(kind, "memory0", lost_at), late=2 * lost_at) == calm(2 * REQUESTS)
            await pools.audit()


def _lose_a_server(servers: PoolCluster) -> Callable[[Pools], Awaitable[None]]:
    async def lose(_: Pools) -> None:
        servers.kill(0)

    return lose
