"""A served system records its decisions; the command line makes them again, without Ray."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serving.cli.replay import EXIT_INCOMPLETE
from tests.e2e.server import STOP_S, Server, wait_for
from tests.e2e.streams import order
from tests.e2e.topology import small
from tests.live.workload import GREEDY, Ask, Reference, varied_asks

pytestmark = pytest.mark.slow


def test_decisions_of_a_served_system_are_replayed(checkpoint: Path, reference: Reference, tmp_path: Path) -> None:
    config = small(tmp_path, checkpoint, prefill=1, decode=2)
    config.write_text(config.read_text().replace("[engine]\n", '[engine]\ndecision_log = "logs"\n'))
    asks = [Ask(ask.prompt, GREEDY, ask.n) for ask in varied_asks(block_tokens=16, step_tokens=128)[:40]]
    with Server(config) as server:
        answers = asyncio.run(ask_all(server, asks[:20]))
        victim = server.replicas("decode")[0]
        os.kill(victim["pid"], signal.SIGKILL)
        answers += asyncio.run(ask_all(server, asks[20:]))
        wait_for(lambda: replaced(server, victim["pid"]), "the lost replica is replaced")
        server.wait_idle()
        scale_down(server)
        took = server.interrupt()
        server.assert_nothing_left()
        assert "not every decision log" not in server.out
        assert took < STOP_S
    assert answers == [reference.outputs(ask) for ask in asks]

    command = [sys.executable, "-m", "serving.cli", "replay", "--json", str(tmp_path / "logs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_INCOMPLETE, done.stderr
    results = json.loads(done.stdout)
    assert all(result["identical"] for result in results)
    assert sorted(result["name"].partition("#")[0] for result in results if result["kind"] == "engine") == [
        "decode", "decode", "decode", "prefill",
    ]  # fmt: skip
    (gateway,) = [result for result in results if result["kind"] == "gateway"]
    assert gateway["calls"]["Submit"] == len(asks)
    (incomplete,) = [result for result in results if not result["complete"]]
    assert incomplete["name"] == victim["replica"], "who was killed; the others were scaled down or asked to stop"
    assert incomplete["ending"].startswith("no end was written: ")


def scale_down(server: Server) -> None:
    """One decode replica leaves."""
    url, token = server.printed("Ray dashboard"), server.printed("dashboard token")
    pids = {replica["pid"] for replica in server.replicas("decode")}
    server.post("/api/pools/decode/scale", {"replicas": 1}, url=url, headers={"Authorization": f"Bearer {token}"})
    wait_for(lambda: len(pids & server.processes().keys()) == 1, "one decode replica has left")


def replaced(server: Server, victim: int) -> bool:
    """Two decode replicas are listed, and none of them is the one that was killed: a listing may lag behind a death."""
    pids = {replica["pid"] for replica in server.replicas("decode")}
    return len(pids) == 2 and victim not in pids


async def ask_all(server: Server, asks: list[Ask]) -> list[list[list[int]]]:
    gate = asyncio.Semaphore(8)

    async def one(ask: Ask) -> list[list[int]]:
        async with gate:
            answer = await asyncio.to_thread(server.post, "/v1/completions", order(ask))
        return [choice["token_ids"] for choice in answer["choices"]]

    return list(await asyncio.gather(*(one(ask) for ask in asks)))
