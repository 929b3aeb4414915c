"""Two Ray nodes with two prefill and two decode instances: handoffs between nodes, and instances that die or freeze."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.e2e.listeners import addresses
from tests.e2e.server import STOP_S, ProcessTable, Server, stopped, wait_for
from tests.e2e.streams import Streams
from tests.e2e.topology import two_nodes
from tests.live.workload import GREEDY, Ask, Reference, tokens, varied_asks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODEL = "model"
POOLS = ("prefill", "decode")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Server]:
    config = two_nodes(tmp_path_factory.mktemp("config"))
    with Server(config, "--model", str(checkpoint)) as running:
        yield running
        took = running.interrupt()
        running.assert_nothing_left()
        assert took < STOP_S


def test_outputs_are_token_exact_and_handoffs_cross_nodes(server: Server, reference: Reference) -> None:
    replicas = [replica for pool in POOLS for replica in server.replicas(pool)]
    memory_servers = server.cluster()["kvcache"]["servers"]
    assert len(server.segments()) == len(replicas) + len(memory_servers), "each has a UB segment of its own"
    assert len(memory_servers) == 2
    assert len({replica["node"] for replica in replicas}) == 2
    asks = [
        Ask(ask.prompt, replace(GREEDY, max_tokens=ask.sampling.max_tokens + 1))
        for ask in varied_asks(block_tokens=16, step_tokens=128)[:80]
    ]
    streams = Streams(server, asks, MODEL)
    asyncio.run(streams.run())
    assert all(stream.follows(reference) for stream in streams.streams)
    server.wait_idle()
    handoffs = [replica["handoffs_in_total"] for replica in server.replicas("decode")]
    assert sum(handoffs) == len(asks)
    assert all(handoffs), "both decode instances had their share"
    until = time.monotonic() + 60.0
    while not sum(replica["readers"] for replica in server.replicas("prefill")):  # announced about once a second
        assert time.monotonic() < until, "segments were read from the other node"
        time.sleep(0.2)


def test_both_nodes_listen_on_loopback(server: Server) -> None:
    listening = addresses(server.processes())
    assert len(listening) > 20, "Ray, Serve, links and the gateway"
    assert [(pid, where) for pid, where in listening if not where.is_loopback] == []


def long_streams(server: Server, seed: int) -> Streams:
    """Eight streams of two prompts: four for each decode instance."""
    rng = random.Random(seed)
    prompts = [tokens(rng, 60), tokens(rng, 60)]
    return Streams(server, [Ask(prompts[i % 2], replace(GREEDY, max_tokens=900)) for i in range(8)], MODEL)


def recovered(server: Server, gone: int) -> bool:
    """Every pool is at its target, without the process that was lost."""
    pids = [replica["pid"] for pool in POOLS for replica in server.replicas(pool)]
    return len(pids) == 4 and gone not in pids


def test_streams_survive_a_killed_instance(server: Server, reference: Reference) -> None:
    async def scene() -> int:
        victim = (await asyncio.to_thread(server.replicas, "decode"))[0]
        streams = long_streams(server, 1)
        running = await streams.start()
        os.kill(victim["pid"], signal.SIGKILL)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)
        return int(victim["pid"])

    gone = asyncio.run(scene())
    wait_for(lambda: recovered(server, gone), "the replacement is listed", state=server.cluster)
    server.wait_idle()


def test_streams_survive_a_frozen_instance(server: Server, reference: Reference) -> None:
    async def scene() -> None:
        victim = (await asyncio.to_thread(server.replicas, "decode"))[0]
        streams = long_streams(server, 2)
        running = await streams.start()
        with stopped(server, victim["pid"]):
            await running
            assert all(stream.follows(reference) for stream in streams.streams)
            gone = int(victim["pid"])
            await asyncio.to_thread(wait_for, lambda: recovered(server, gone), "the replacement is listed")

    asyncio.run(scene())
    server.wait_idle()


def test_prompts_survive_a_killed_prefill_instance(server: Server, reference: Reference) -> None:
    async def scene() -> int:
        victim = (await asyncio.to_thread(server.replicas, "prefill"))[0]
        rng = random.Random(3)
        asks = [Ask(tokens(rng, rng.randrange(300, 900)), replace(GREEDY, max_tokens=20)) for _ in range(60)]
        streams = Streams(server, asks, MODEL)
        running = await streams.start(first_only=True)
        os.kill(victim["pid"], signal.SIGKILL)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)
        return int(victim["pid"])

    gone = asyncio.run(scene())
    wait_for(lambda: recovered(server, gone), "the replacement is listed", state=server.cluster)
    server.wait_idle()


def test_a_frozen_instance_that_thaws_changes_nothing_and_gives_its_memory_back(
    server: Server, reference: Reference
) -> None:
    async def scene() -> dict[str, int]:
        victim = (await asyncio.to_thread(server.replicas, "decode"))[0]
        streams = long_streams(server, 2)
        running = await streams.start()
        with stopped(server, victim["pid"]):
            # Long enough to be left by the gateway, too short for Serve to replace it.
            await asyncio.sleep(4.0)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)
        return victim

    victim = asyncio.run(scene())
    server.wait_idle()
    wait_for(lambda: len(server.replicas("decode")) == 2, "both are listed", state=server.cluster)
    assert victim["pid"] in [replica["pid"] for replica in server.replicas("decode")], "it was not replaced"


def raylet_of(server: Server, pid: int) -> int:
    """The raylet that started a replica."""
    return ProcessTable.read().parents[pid]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_node_is_lost_and_comes_back(how: str, server: Server, reference: Reference) -> None:
    (front,) = (pid for pid, line in server.processes().items() if ":gateway" in line)
    first = raylet_of(server, front)
    replicas = [replica for pool in POOLS for replica in server.replicas(pool)]
    lost = [replica for replica in replicas if raylet_of(server, replica["pid"]) != first]
    assert lost, "no node holds all four"
    raylet = raylet_of(server, lost[0]["pid"])

    async def scene() -> None:
        streams = long_streams(server, 1)
        running = await streams.start()
        os.kill(raylet, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    gone = {replica["node"] for replica in lost}

    def back() -> bool:
        now = [replica for pool in POOLS for replica in server.replicas(pool)]
        return len(now) == 4 and not gone & {replica["node"] for replica in now}

    wait_for(back, "another node has the replicas", state=server.cluster)
    server.wait_idle()
