"""One pool that does both, behind an API key."""

import asyncio
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import STOP_S, Server
from tests.e2e.streams import order
from tests.e2e.topology import small
from tests.runtime.workload import GREEDY, Ask, Reference, varied_asks

pytestmark = pytest.mark.slow

KEY = "s3cret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Server]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, mode="aggregated", aggregated=2)
    with Server(config, "--api-key", KEY) as running:
        running.key = KEY
        yield running
        took = running.interrupt()
        running.assert_nothing_left()
        assert took < STOP_S


def test_outputs_are_token_exact(server: Server, reference: Reference) -> None:
    asks = [Ask(ask.prompt, GREEDY, ask.n) for ask in varied_asks(block_tokens=16, step_tokens=128)[:60]]

    async def ask_all() -> list[object]:
        gate = asyncio.Semaphore(16)

        async def one(ask: Ask) -> object:
            async with gate:
                return await asyncio.to_thread(server.post, "/v1/completions", order(ask))

        return await asyncio.gather(*(one(ask) for ask in asks))

    for ask, answer in zip(asks, asyncio.run(ask_all()), strict=True):
        assert isinstance(answer, dict)
        assert [choice["token_ids"] for choice in answer["choices"]] == reference.outputs(ask)
    server.wait_idle()
    steps = [replica["steps_total"] for replica in server.replicas("aggregated")]
    assert len(steps) == 2
    assert all(steps), "both instances had their share"
    assert server.cluster()["mode"] == "aggregated"


@pytest.mark.parametrize("path", ["/v1/models", "/cluster"])
def test_nobody_enters_without_the_key(server: Server, path: str) -> None:
    for wrong in ("", "Bearer guess"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.get(path, headers={"Authorization": wrong})
        assert caught.value.code == 401
        caught.value.close()
    assert server.get(path)


def test_the_status_command_wants_the_key_too(server: Server) -> None:
    command = [sys.executable, "-m", "serving.cli", "status", "--url", server.url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give its key with --api-key" in refused.stderr
    shown = subprocess.run([*command, "--api-key", KEY], capture_output=True, text=True, timeout=60, check=True)
    assert "aggregated 2/2" in shown.stdout
