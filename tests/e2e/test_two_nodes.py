"""Two Ray nodes, two prefill and two decode instances: handoffs between nodes; instances, nodes and Ray's own parts die
or freeze, pools shrink to zero, and streams stay token-exact. The recorded decisions replay identically.

One system for the whole file; the last test ends it.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from loadgen.exit_codes import ExitCode
from tests.e2e.deaths import BACK_S, pid_of, pids_of, wait_for_the_dashboard
from tests.e2e.listeners import addresses
from tests.e2e.scaled import Scaled
from tests.e2e.server import STOP_S, ProcessTable, raylet_of, stopped, wait_for
from tests.e2e.streams import Streams
from tests.e2e.topology import two_nodes
from tests.live.workload import GREEDY, Ask, Reference, tokens, varied_asks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MODEL = "model"
POOLS = ("prefill", "decode")
SETTINGS = """[engine]
decision_log = "logs"
drain_s = 0.2
empty_role_s = 0.5
"""
SLOW_STEPS = "\n[chaos]\nenabled = true\nleast_step_s = 0.01\n"
LENGTH = 300
"""Tokens of a stream: 3 s, so that it still runs when a process dies."""


@dataclass
class Past:
    """Expected contents of the decision logs."""

    logs: Path
    requests: int = 0
    killed: set[str] = field(default_factory=set)
    """Replicas that had no time to end their log."""


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(tmp_path_factory.mktemp("config") / "logs")


@pytest.fixture(scope="module")
def server(past: Past, checkpoint: Path) -> Iterator[Scaled]:
    config = two_nodes(past.logs.parent)
    config.write_text(config.read_text().replace("[engine]\n", SETTINGS) + SLOW_STEPS)
    with Scaled(config, "--model", str(checkpoint)) as running:
        yield running


def test_outputs_are_token_exact_and_handoffs_cross_nodes(server: Scaled, past: Past, reference: Reference) -> None:
    replicas = [replica for pool in POOLS for replica in server.replicas(pool)]
    memory_servers = server.cluster()["kvcache"]["servers"]
    assert len(server.segments()) == len(replicas) + len(memory_servers), "each has a UB segment of its own"
    assert len(memory_servers) == 2
    assert len({replica["node"] for replica in replicas}) == 2
    asks = [
        Ask(ask.prompt, replace(GREEDY, max_tokens=ask.sampling.max_tokens + 1))
        for ask in varied_asks(block_tokens=16, step_tokens=128)[:60]
    ]
    streams = streamed(server, past, asks)
    asyncio.run(streams.run())
    assert all(stream.follows(reference) for stream in streams.streams)
    server.wait_idle()
    handoffs = [replica["handoffs_in_total"] for replica in server.replicas("decode")]
    assert sum(handoffs) == len(asks)
    assert all(handoffs), "both decode instances had their share"
    wait_for(  # announced about once a second
        lambda: sum(replica["readers"] for replica in server.replicas("prefill")) > 0,
        "segments were read from the other node",
    )
    listening = addresses(server.processes())
    assert len(listening) > 20, "Ray, Serve, links and the gateway"
    assert [(pid, where) for pid, where in listening if not where.is_loopback] == []


def streamed(server: Scaled, past: Past, asks: list[Ask]) -> Streams:
    """Stream these requests, which the gateway's log will contain."""
    past.requests += len(asks)
    return Streams(server, asks, MODEL)


def long_streams(server: Scaled, past: Past, seed: int) -> Streams:
    """Eight streams of two prompts: four for each decode instance."""
    rng = random.Random(seed)
    prompts = [tokens(rng, 60), tokens(rng, 60)]
    return streamed(server, past, [Ask(prompts[i % 2], replace(GREEDY, max_tokens=LENGTH)) for i in range(8)])


def whole(server: Scaled, *gone: int) -> bool:
    """Whether every pool is at its target, without the killed processes."""
    pids = [replica["pid"] for pool in POOLS for replica in server.replicas(pool)]
    return len(pids) == 4 and not set(gone) & set(pids)


def kill(replica: dict[str, object], past: Past) -> None:
    """Send SIGKILL to a replica, whose log then has no end mark."""
    os.kill(int(str(replica["pid"])), signal.SIGKILL)
    past.killed.add(str(replica["replica"]))


def test_streams_and_prompts_survive_killed_instances(server: Scaled, past: Past, reference: Reference) -> None:
    """First a decode instance under streams; before it is back, a prefill instance under prompts."""
    decode, prefill = server.replicas("decode")[0], server.replicas("prefill")[0]

    async def scene() -> None:
        streams = long_streams(server, past, 1)
        running = await streams.start()
        kill(decode, past)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)
        rng = random.Random(3)
        asks = [Ask(tokens(rng, rng.randrange(300, 900)), replace(GREEDY, max_tokens=20)) for _ in range(40)]
        prompts = streamed(server, past, asks)
        running = await prompts.start(first_only=True)
        kill(prefill, past)
        await running
        assert all(stream.follows(reference) for stream in prompts.streams)

    asyncio.run(scene())
    wait_for(lambda: whole(server, decode["pid"], prefill["pid"]), "replacements are listed", state=server.cluster)
    server.wait_idle()


def test_a_frozen_instance_that_thaws_changes_nothing_and_gives_its_memory_back(
    server: Scaled, past: Past, reference: Reference
) -> None:
    victim = server.replicas("decode")[0]

    async def scene() -> None:
        streams = long_streams(server, past, 2)
        running = await streams.start()
        with stopped(server, victim["pid"]):
            # Long enough to be left by the gateway, too short for Serve to replace it.
            await asyncio.sleep(4.0)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    server.wait_idle()
    wait_for(lambda: whole(server), "both are listed", state=server.cluster)
    assert victim["pid"] in [replica["pid"] for replica in server.replicas("decode")], "it was not replaced"


@pytest.mark.nightly("tests/e2e/test_two_nodes.py::test_a_node_is_killed_and_comes_back")
def test_a_frozen_instance_is_replaced(server: Scaled, past: Past, reference: Reference) -> None:
    victim = server.replicas("decode")[0]
    past.killed.add(victim["replica"])

    async def scene() -> None:
        streams = long_streams(server, past, 2)
        running = await streams.start()
        with stopped(server, victim["pid"]):
            await running
            assert all(stream.follows(reference) for stream in streams.streams)
            await asyncio.to_thread(wait_for, lambda: whole(server, victim["pid"]), "the replacement is listed")

    asyncio.run(scene())
    server.wait_idle()


def test_rays_parts_die_at_once(server: Scaled, past: Past, reference: Reference) -> None:
    """Streams are unaffected, an instance that dies next is replaced, and the dashboard is at its address again."""
    central = ("ServeController", "MembershipActor", "PoolControlActor", "gcs_server")
    monitors = ("dashboard/dashboard.py", "autoscaler/_private/monitor.py")
    wait_for(lambda: all(pids_of(server, title) for title in monitors), "all are there", BACK_S, server.processes)
    doomed = {title: pids_of(server, title) for title in (*central, *monitors)}
    victim = server.replicas("decode")[0]

    async def scene() -> None:
        streams = long_streams(server, past, 4)
        running = await streams.start()
        for pid in (pid for pids in doomed.values() for pid in pids):
            os.kill(pid, signal.SIGKILL)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    kill(victim, past)
    wait_for(lambda: whole(server, victim["pid"]), "it is replaced", BACK_S, server.cluster)
    wait_for(lambda: len(server.cluster()["kvcache"]["servers"]) == 2, "the pool is known again", BACK_S)
    for title, pids in doomed.items():
        wait_for(lambda: set(pids_of(server, title)) - set(pids) != set(), f"{title} is back", BACK_S)  # noqa: B023
    wait_for_the_dashboard(server)
    server.wait_idle()


def test_a_node_is_killed_and_comes_back(server: Scaled, past: Past, reference: Reference) -> None:
    lose_a_node(server, past, reference, signal.SIGKILL)


@pytest.mark.nightly("tests/e2e/test_two_nodes.py::test_a_node_is_killed_and_comes_back")
def test_a_node_is_frozen_and_replaced(server: Scaled, past: Past, reference: Reference) -> None:
    lose_a_node(server, past, reference, signal.SIGSTOP)


def lose_a_node(server: Scaled, past: Past, reference: Reference, how: signal.Signals) -> None:
    """Signal the raylet without the gateway, under streams; wait until another node has its replicas."""
    front = raylet_of(pid_of(server, ":gateway"))
    replicas = [replica for pool in POOLS for replica in server.replicas(pool)]
    lost = [replica for replica in replicas if raylet_of(replica["pid"]) != front]
    assert lost, "no node holds all four"
    raylet = raylet_of(lost[0]["pid"])
    past.killed |= {replica["replica"] for replica in lost}

    async def scene() -> None:
        streams = long_streams(server, past, 1)
        running = await streams.start()
        os.kill(raylet, how)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    gone = {replica["node"] for replica in lost}

    def back() -> bool:
        now = [replica for pool in POOLS for replica in server.replicas(pool)]
        return len(now) == 4 and not gone & {replica["node"] for replica in now}

    wait_for(back, "another node has the replicas", state=server.cluster)
    server.wait_idle()


def test_the_first_node_dies_and_everything_comes_back_by_itself(
    server: Scaled, past: Past, reference: Reference
) -> None:
    """The gateway is on it, so clients wait until another one serves."""
    front = raylet_of(pid_of(server, ":gateway"))
    replicas = [replica for pool in POOLS for replica in server.replicas(pool)]
    past.killed |= {one["replica"] for one in replicas if raylet_of(one["pid"]) == front}
    workers = [pid for pid, title in server.processes().items() if title.startswith("ray::Serve")]
    gone = [pid for pid, parent in ProcessTable.read().parents.items() if parent == front]
    gone += [pid for pid in workers if raylet_of(pid) == front]
    os.kill(front, signal.SIGKILL)
    wait_for(lambda: not set(gone) & server.processes().keys(), "what ran there has ended", BACK_S, server.processes)

    def serves() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{server.url}/ready", timeout=1.0).status_code == 200
        return False

    wait_for(serves, "it serves again", BACK_S)
    streams = streamed(server, past, [Ask(tokens(random.Random(9), 30), replace(GREEDY, max_tokens=8))])
    asyncio.run(streams.run())
    assert all(stream.follows(reference) for stream in streams.streams)
    wait_for(lambda: whole(server, *gone), "all of it", BACK_S, server.cluster)
    server.wait_idle()


@pytest.mark.parametrize(("pool", "replicas"), [("decode", 1), ("decode", 0), ("prefill", 0)])
def test_streams_go_on_when_pools_shrink(
    pool: str, replicas: int, server: Scaled, past: Past, reference: Reference
) -> None:
    """The second time only their source is left to take them; then prefill takes over; then no instance is left."""
    if pool == "prefill":
        assert server.replicas("decode") == [], "prefill stands in"
    streams = long_streams(server, past, 10 + replicas + len(pool))

    async def scene() -> None:
        running = await streams.start()
        await asyncio.to_thread(scaled, server, pool, replicas)
        await running

    asyncio.run(scene())
    assert all(stream.follows(reference) for stream in streams.streams)
    server.wait_idle()


def scaled(server: Scaled, pool: str, replicas: int) -> None:
    """Request this number, and wait until the draining replicas have ended."""
    told = server.command("scale", pool, str(replicas))
    assert told.returncode == 0, told.stderr
    wait_for(lambda: len(server.replicas(pool)) <= replicas, f"{pool} has shrunk to {replicas}", state=server.cluster)


def test_decisions_replay_identically(server: Scaled, past: Past) -> None:
    took = server.interrupt()
    server.assert_nothing_left()
    assert "not every decision log" not in server.out
    assert took < STOP_S

    command = [sys.executable, "-m", "serving.cli", "replay", "--json", str(past.logs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (ExitCode.INCOMPLETE if past.killed else 0), done.stderr
    results = json.loads(done.stdout)
    assert all(result["identical"] for result in results)
    names = {result["name"] for result in results}
    assert names >= past.killed
    gateways = [result for result in results if result["kind"] == "gateway"]
    assert sum(gateway["calls"].get("Submit", 0) for gateway in gateways) == past.requests
    assert [gateway["complete"] for gateway in gateways].count(False) == 1, "the one on the first node"
    incomplete = [result for result in results if not result["complete"]]
    engines = {result["name"] for result in incomplete if result["kind"] == "engine"}
    assert engines == past.killed, "the others were scaled down or asked to stop"
    assert all(result["ending"].startswith("no end was written: ") for result in incomplete)
