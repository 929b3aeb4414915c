"""Pools shrink in the middle of streams: the streams move, the replicas go at once, clients notice nothing."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scaled import Scaled, asks
from tests.e2e.server import STOP_S, wait_for
from tests.e2e.streams import Streams
from tests.e2e.topology import small
from tests.live.workload import Reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LENGTH = 900


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Scaled]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=1, decode=2)
    config.write_text(config.read_text().replace("[engine]\n", "[engine]\ndrain_s = 0.2\nempty_role_s = 0.5\n"))
    with Scaled(config) as running:
        yield running
        took = running.interrupt()
        running.assert_nothing_left()
        assert took < STOP_S


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


@pytest.mark.parametrize(("pool", "replicas"), [("decode", 1), ("decode", 0), ("prefill", 0)])
def test_streams_go_on(pool: str, replicas: int, server: Scaled, reference: Reference) -> None:
    """The second time nobody is left to take them but their source; then prefill stands in, and then nobody is left."""
    if pool == "prefill":
        assert server.replicas("decode") == [], "prefill stands in"
    streams, took = asyncio.run(shrunk_under_streams(server, pool, replicas, seed=replicas + len(pool)))
    print(f"{pool} shrank to {replicas} in {took:.1f} s under {len(streams.streams)} streams")
    assert all(stream.follows(reference) for stream in streams.streams)
    server.wait_idle()
