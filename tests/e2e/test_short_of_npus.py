"""Prefill gives up NPUs for decode: a node is lost for good, and with it the only decode instance.

Until decode is back, prefill decodes in its place, and streams continue at once.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scaled import Scaled, asks, settled
from tests.e2e.server import raylet_of, wait_for
from tests.e2e.streams import Streams
from tests.e2e.topology import small
from tests.live.workload import Reference

SAME = "tests/virtual/core/test_scaling.py::test_decode_waits_for_the_npus_that_prefill_yields"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.nightly(SAME)]

RIGHT = """
[[cluster.nodes]]
npus = 4
ub_memory_mib = 4
"""
"""Too little memory for a prefill instance: only the decode instance runs."""
SETTINGS = """
[gateway]
role_wait_s = 120.0

[autoscaler]
policy = "slo"
period_s = 0.3
min_decode = 0
max_prefill = 2
max_decode = 1

[chaos]
enabled = true
least_step_s = 0.02
"""
"""Slow steps, so that streams are running when the node dies and when prefill yields."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Scaled]:
    """Prefill fills the first node, so decode, which the first request starts, can only be placed on the second."""
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=2, decode=0)
    text = config.read_text().replace("npus_per_instance = 2", "npus_per_instance = 4")
    text = text.replace("[hardware]", f"{RIGHT}\n[hardware]").replace("[cluster]", "[cluster]\nrestart_nodes = false")
    text = text.replace("ub_memory_mib = 4\n\n[decode]", "ub_memory_mib = 8\n\n[decode]")
    config.write_text(text.replace("[engine]", "[engine]\ndrain_s = 0.5") + SETTINGS)
    with Scaled(config) as running:
        yield running


def test_prefill_yields_to_decode_that_lost_its_node(server: Scaled, reference: Reference) -> None:
    first = Streams(server, asks(1, 2, 20))
    asyncio.run(first.run())
    assert all(stream.follows(reference) for stream in first.streams)
    settled(server, "decode", 1)
    (lost,), computing = server.replicas("decode"), server.replicas("prefill")
    assert lost["node"] not in {replica["node"] for replica in computing}

    async def scene() -> None:
        streams = Streams(server, asks(2, 4, 400))
        running = await streams.start()
        lost_at = time.monotonic()
        os.kill(raylet_of(lost["pid"]), signal.SIGKILL)
        await asyncio.to_thread(settled, server, "prefill", 1)
        await asyncio.to_thread(settled, server, "decode", 1)
        print(f"decode has prefill's NPUs {time.monotonic() - lost_at:.1f} s after its node died")
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    wait_for(lambda: len(server.replicas("decode")) == 1, "the gateway knows it")
    last = Streams(server, asks(3, 4, 20))
    asyncio.run(last.run())
    assert all(stream.follows(reference) for stream in last.streams)
    server.wait_idle()
    (kept,) = server.replicas("decode")
    assert kept["node"] == computing[0]["node"]
    assert kept["handoffs_in_total"] > 0, "it decodes, not prefill in its place"
    assert server.kinds("prefill")[0] == ("yield", "autoscaler")
    (told,) = (line for line in server.command("decisions", "--pool", "prefill").stdout.splitlines() if "yield" in line)
    assert "2 -> 1" in told
    assert "decode comes first" in told
