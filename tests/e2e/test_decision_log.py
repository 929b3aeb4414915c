"""A pool loses an instance, then pools shrink to nothing under streams: clients notice nothing. The system records its
decisions all the while, and the command line makes them again, without Ray.

One system for the whole file; the last test ends it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from serving.cli.replay import EXIT_INCOMPLETE
from tests.e2e.scaled import Scaled, asks
from tests.e2e.server import STOP_S, Server, wait_for
from tests.e2e.streams import Streams, order
from tests.e2e.topology import small
from tests.live.workload import GREEDY, Ask, Reference, varied_asks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LENGTH = 900
SETTINGS = '[engine]\ndecision_log = "logs"\ndrain_s = 0.2\nempty_role_s = 0.5\n'


@dataclass
class Past:
    """Events that the logs must tell of."""

    logs: Path
    requests: int = 0
    killed: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return Past(tmp_path_factory.mktemp("config") / "logs")


@pytest.fixture(scope="module")
def server(past: Past, checkpoint: Path) -> Iterator[Scaled]:
    config = small(past.logs.parent, checkpoint, prefill=1, decode=2)
    config.write_text(config.read_text().replace("[engine]\n", SETTINGS))
    with Scaled(config) as running:
        yield running


def test_a_killed_instance_is_replaced(server: Scaled, past: Past, reference: Reference) -> None:
    asked = [Ask(ask.prompt, GREEDY, ask.n) for ask in varied_asks(block_tokens=16, step_tokens=128)[:40]]
    answers = asyncio.run(ask_all(server, asked[:20]))
    victim = server.replicas("decode")[0]
    os.kill(victim["pid"], signal.SIGKILL)
    past.killed.append(victim["replica"])
    answers += asyncio.run(ask_all(server, asked[20:]))
    past.requests += len(asked)
    assert answers == [reference.outputs(ask) for ask in asked]
    wait_for(lambda: replaced(server, victim["pid"]), "the lost replica is replaced")
    server.wait_idle()


@pytest.mark.parametrize(("pool", "replicas"), [("decode", 1), ("decode", 0), ("prefill", 0)])
def test_streams_go_on(pool: str, replicas: int, server: Scaled, past: Past, reference: Reference) -> None:
    """The second time nobody is left to take them but their source; then prefill stands in, and then nobody is left."""
    if pool == "prefill":
        assert server.replicas("decode") == [], "prefill stands in"
    streams, took = asyncio.run(shrunk_under_streams(server, pool, replicas, seed=replicas + len(pool)))
    past.requests += len(streams.streams)
    print(f"{pool} shrank to {replicas} in {took:.1f} s under {len(streams.streams)} streams")
    assert all(stream.follows(reference) for stream in streams.streams)
    server.wait_idle()


def test_its_decisions_are_replayed(server: Scaled, past: Past) -> None:
    took = server.interrupt()
    server.assert_nothing_left()
    assert "not every decision log" not in server.out
    assert took < STOP_S

    command = [sys.executable, "-m", "serving.cli", "replay", "--json", str(past.logs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == (EXIT_INCOMPLETE if past.killed else 0), done.stderr
    results = json.loads(done.stdout)
    assert all(result["identical"] for result in results)
    engines = sorted(result["name"].partition("#")[0] for result in results if result["kind"] == "engine")
    assert engines == ["decode"] * (2 + len(past.killed)) + ["prefill"]
    (gateway,) = [result for result in results if result["kind"] == "gateway"]
    assert gateway["calls"].get("Submit", 0) == past.requests
    incomplete = [result for result in results if not result["complete"]]
    assert [result["name"] for result in incomplete] == past.killed, "the others were scaled down or asked to stop"
    assert all(result["ending"].startswith("no end was written: ") for result in incomplete)


def scaled(server: Scaled, pool: str, replicas: int) -> None:
    """Ask for so many, and wait until those that leave are gone."""
    told = server.command("scale", pool, str(replicas))
    assert told.returncode == 0, told.stderr
    wait_for(lambda: len(server.replicas(pool)) <= replicas, f"{pool} has shrunk to {replicas}", state=server.cluster)


async def shrunk_under_streams(server: Scaled, pool: str, replicas: int, seed: int) -> tuple[Streams, float]:
    """Eight long streams; when all have begun, the pool shrinks. Returns: them at their ends, and how long it took."""
    streams = Streams(server, asks(seed, 8, LENGTH))
    running = await streams.start()
    begun = time.monotonic()
    await asyncio.to_thread(scaled, server, pool, replicas)
    took = time.monotonic() - begun
    await running
    return streams, took


def replaced(server: Server, victim: int) -> bool:
    """Two decode replicas are listed, and none of them is the one that was killed: a listing may lag behind a death."""
    pids = {replica["pid"] for replica in server.replicas("decode")}
    return len(pids) == 2 and victim not in pids


async def ask_all(server: Server, asked: list[Ask]) -> list[list[list[int]]]:
    gate = asyncio.Semaphore(8)

    async def one(ask: Ask) -> list[list[int]]:
        async with gate:
            answer = await asyncio.to_thread(server.post, "/v1/completions", order(ask))
        return [choice["token_ids"] for choice in answer["choices"]]

    return list(await asyncio.gather(*(one(ask) for ask in asked)))
