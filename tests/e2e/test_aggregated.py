"""One pool that does both, behind two gateways with an API key, which leave in good order at the end."""

import asyncio
import re
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.e2e.leaving import one_gateway_leaves, the_system_leaves
from tests.e2e.scaled import Scaled
from tests.e2e.server import Server, wait_for
from tests.e2e.streams import Streams, order
from tests.e2e.topology import small
from tests.live.workload import GREEDY, Ask, Reference, varied_asks

pytestmark = pytest.mark.slow

KEY, TENANT_KEY, ADMIN_KEY, SALT = "sk-of-everybody", "sk-of-acme", "sk-of-the-operator", "salt-of-this-site"
TWO_GATEWAYS = f"""
[gateway]
replicas = 2
admin_keys = ["{ADMIN_KEY}"]

[chaos]
enabled = true
least_step_s = 0.02

[[namespaces]]
name = "acme"
api_keys = ["{TENANT_KEY}"]
"""
"""And steps that last, so that streams can be counted."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Scaled]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, mode="aggregated", aggregated=2)
    config.write_text(config.read_text() + TWO_GATEWAYS)
    keys = config.parent / "keys.txt"
    keys.write_text(f"# of the tests\n{KEY}\n")
    keys.chmod(0o600)
    with Scaled(config, "--api-key-file", str(keys), "--set", f"kvcache.salt={SALT}") as running:
        running.key, running.admin_key = KEY, ADMIN_KEY
        yield running


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


def test_both_gateways_serve(server: Server) -> None:
    """The kernel gives each new connection to one of them; what one tells is true for both."""
    successes: dict[str, float] = {}

    def both() -> bool:
        server.post("/v1/completions", order(Ask((1, 2, 3), replace(GREEDY, max_tokens=1))))
        before = dict(successes)
        counted = re.findall(r'^vllm:request_success_total{.*engine="(\d+)".*} (\S+)$', server.get("/metrics"), re.M)
        for engine in {engine for engine, _ in counted}:
            successes[engine] = sum(float(count) for of, count in counted if of == engine)
        told = {engine for engine, _ in counted}
        assert told >= set(before), "each shows what the other counted"
        assert all(successes[engine] >= count for engine, count in before.items()), "no counter runs backwards"
        return len([engine for engine, count in successes.items() if count > 10]) == 2

    wait_for(both, "each has served more than ten requests", state=lambda: successes)
    wait_for(lambda: server.cluster()["gateways"] == 2, "each knows of the other", state=server.cluster)
    assert re.search(r"^cloudmatrix:gateway_queued_requests{.*} 0.0$", server.get("/metrics"), re.M)

    async def scene() -> None:
        streams = Streams(server, [Ask((1, 2, 3), replace(GREEDY, max_tokens=900))] * 6)
        running = await streams.start()
        count = 0
        while not running.done() and count < 6:
            count = (await asyncio.to_thread(server.cluster))["gateway"]["running"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert count == 6, "whoever is asked tells of all"

    asyncio.run(scene())
    server.wait_idle()


@pytest.mark.parametrize(("path", "key"), [("/v1/models", KEY), ("/cluster", ADMIN_KEY)])
def test_nobody_enters_without_the_key(server: Server, path: str, key: str) -> None:
    for wrong in ("", "Bearer guess"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.get(path, headers={"Authorization": wrong})
        assert caught.value.code == 401
        caught.value.close()
    assert server.get(path, headers={"Authorization": f"Bearer {key}"})


def test_the_status_command_wants_the_key_too(server: Server) -> None:
    command = [sys.executable, "-m", "serving.cli", "status", "--url", server.url]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give its key with --api-key" in refused.stderr
    shown = subprocess.run([*command, "--api-key", ADMIN_KEY], capture_output=True, text=True, timeout=60, check=True)
    assert "aggregated 2/2" in shown.stdout


def test_secrets_stand_nowhere_but_where_they_were_given(server: Server) -> None:
    """Not in logs, nor in what Ray's control store keeps on disk, nor in what processes hand on."""
    for key in (KEY, TENANT_KEY, ADMIN_KEY):
        assert "data" in server.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
    found = [
        (secret, str(path))
        for path in server.folder.rglob("*")
        if path.is_file() and not path.is_symlink()
        for secret in (KEY, TENANT_KEY, ADMIN_KEY, SALT)
        if secret.encode() in path.read_bytes()
    ]
    assert found == []
    assert "every user of this machine can read --set kvcache.salt" in server.err


def test_streams_end_when_their_gateway_leaves(server: Scaled, reference: Reference) -> None:
    one_gateway_leaves(server, reference)
    the_system_leaves(server, reference, patient=True)
