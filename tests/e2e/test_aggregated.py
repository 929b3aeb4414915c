"""One pool that prefills and decodes, behind API keys, two gateways and Serve's proxy, with Redis behind the GCS.

Redis, GCS and proxy die; gateways shut down in an orderly way at the end. The nightly run repeats it without the
proxy, where the kernel distributes connections over the two gateways.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from tests.e2e.deaths import BACK_S, pid_of, pids_of, wait_for_the_dashboard
from tests.e2e.leaving import one_gateway_leaves, the_system_leaves
from tests.e2e.scaled import Scaled, asks
from tests.e2e.server import Server, free_port, wait_for
from tests.e2e.streams import Streams, order
from tests.e2e.topology import small
from tests.kvpool.redis_process import REDIS_SERVER, needs_redis
from tests.live.workload import GREEDY, Ask, Reference, varied_asks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY, TENANT_KEY, ADMIN_KEY, SALT = "sk-of-everybody", "sk-of-acme", "sk-of-the-operator", "salt-of-this-site"
TWO_GATEWAYS = f"""
[gateway]
replicas = 2
background_lease_s = 2.0
admin_keys = ["{ADMIN_KEY}"]

[chaos]
enabled = true
least_step_s = 0.02

[[namespaces]]
name = "acme"
api_keys = ["{TENANT_KEY}"]
"""
"""And steps that last, so that streams can be counted."""


OWN_SERVER = pytest.mark.nightly("tests/e2e/test_aggregated.py::test_both_gateways_serve")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis with a password, on loopback; without Redis the GCS stores its state on disk."""
    if REDIS_SERVER is None:
        assert not os.environ.get("CI"), "CI must have redis-server"
        yield "embedded"
        return
    port, password = free_port(), secrets.token_hex(8)
    folder = tmp_path_factory.mktemp("redis")
    command = [REDIS_SERVER, "--port", str(port), "--bind", "127.0.0.1", "--requirepass", password]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"redis://:{password}@127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture(scope="module", params=["serve", pytest.param("uvicorn", marks=OWN_SERVER)])
def server(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, redis_url: str, request: pytest.FixtureRequest
) -> Iterator[Scaled]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, mode="aggregated", aggregated=2)
    stored = f'response_store = "{redis_url}"\n' if redis_url != "embedded" else ""
    text = config.read_text().replace("[cluster]", f'[cluster]\ngcs_storage = "{redis_url}"')
    config.write_text(text + TWO_GATEWAYS.replace("[gateway]", f'[gateway]\n{stored}server = "{request.param}"'))
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
    """Either gateway may get a request; the report of one covers both."""
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
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "give its key with --api-key" in refused.stderr
    shown = subprocess.run([*command, "--api-key", ADMIN_KEY], capture_output=True, text=True, timeout=60, check=True)
    assert "aggregated 2/2" in shown.stdout


def test_secrets_stand_nowhere_but_where_they_were_given(server: Server) -> None:
    """Secrets are not in logs, in files of Ray's control store, or in the environment of child processes."""
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


@pytest.mark.nightly("tests/gateway/api/test_killed_gateways.py::test_a_killed_gateways_response_is_continued")
@needs_redis
def test_a_gateway_dies_and_another_one_continues_its_background_responses(server: Scaled) -> None:
    """Also where both are killed at once: their replacements continue."""
    asked = [{"input": f"{n}", "temperature": 1.0, "seed": n, "max_output_tokens": 150, "ignore_eos": True,
              "background": True} for n in range(8)]  # fmt: skip

    def events(name: str, query: str) -> list[Any]:
        text = server.get(f"/v1/responses/{name}?stream=true{query}")
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]

    whole = [events(server.post("/v1/responses", body)["id"], "") for body in asked]
    for victims in (1, 2):
        names = [server.post("/v1/responses", body)["id"] for body in asked]
        for pid in pids_of(server, ":gateway")[:victims]:
            os.kill(pid, signal.SIGKILL)

        def ended(name: str) -> bool:
            with contextlib.suppress(OSError):
                return bool(json.loads(server.get(f"/v1/responses/{name}"))["status"] == "incomplete")
            return False

        for name, once in zip(names, whole, strict=True):
            wait_for(lambda name=name: ended(name), "it is continued", BACK_S)  # type: ignore[misc]
            found = events(name, "")
            assert [event["sequence_number"] for event in found] == list(range(len(found)))
            assert found[-1]["response"]["output"][0]["content"] == once[-1]["response"]["output"][0]["content"]
            deltas = "".join(event.get("delta", "") for event in found)
            assert deltas == found[-1]["response"]["output"][0]["content"][0]["text"]
            assert events(name, "&starting_after=3") == found[4:]
        wait_for(lambda: len(pids_of(server, ":gateway")) == 2, "there are two again", BACK_S)
    server.wait_idle()


@needs_redis
def test_a_batch_from_file_to_results(server: Scaled, reference: Reference) -> None:
    asked = {f"c{index}": one for index, one in enumerate(asks(5, 12, 20))}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": order(one)}
        for name, one in asked.items()
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        uploaded = client.post("/v1/files", files={"file": ("in.jsonl", text)}, data={"purpose": "batch"}).json()
        body = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        name = client.post("/v1/batches", json=body).json()["id"]

        def batch() -> dict[str, Any]:
            found: dict[str, Any] = client.get(f"/v1/batches/{name}").json()
            return found

        wait_for(lambda: batch()["status"] == "completed", "its lines have run", BACK_S, batch)
        ended = batch()
        output = client.get(f"/v1/files/{ended['output_file_id']}/content").content
    assert batch_tokens(output) == {name: reference.output(one.prompt, one.sampling) for name, one in asked.items()}
    assert ended["request_counts"] == {"total": 12, "completed": 12, "failed": 0}


def batch_tokens(output: bytes) -> dict[str, list[int]]:
    """Token ids of a batch's output file, by line; each line is there once."""
    lines = [json.loads(line) for line in output.splitlines()]
    found = {line["custom_id"]: line["response"]["body"]["choices"][0]["token_ids"] for line in lines}
    assert len(found) == len(lines)
    return found


@needs_redis
def test_the_gcs_dies_and_redis_remembers(server: Scaled, reference: Reference) -> None:
    before, gone = pids_of(server, "gcs_server"), server.replicas("aggregated")[0]["pid"]

    async def scene() -> None:
        streams = Streams(server, asks(6, 8, 150))
        running = await streams.start()
        os.kill(pid_of(server, "gcs_server"), signal.SIGKILL)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    wait_for(lambda: pids_of(server, "gcs_server") not in ([], before), "there is another one", BACK_S)
    os.kill(gone, signal.SIGKILL)

    def replaced() -> bool:
        pids = [replica["pid"] for replica in server.replicas("aggregated")]
        return len(pids) == 2 and gone not in pids

    wait_for(replaced, "a killed instance is replaced", BACK_S, server.cluster)
    wait_for_the_dashboard(server)
    server.wait_idle()


def test_the_proxy_dies_streams_are_cut_and_requests_are_accepted_again(
    server: Scaled, request: pytest.FixtureRequest
) -> None:
    if "[uvicorn]" in request.node.name:
        pytest.skip("the gateways have no proxy before them")
    body = json.dumps(order(asks(7, 1, 300)[0], stream=True))
    sent = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", f"{server.url}/v1/completions", content=body, headers=sent, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(pid_of(server, "ProxyActor"), signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(httpx.TransportError):
            list(lines)
        assert time.monotonic() - begun < 30.0, "cut, not left hanging"

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{server.url}/health", timeout=1.0).status_code == 200
        return False

    wait_for(answers, "the proxy is back", BACK_S)
    server.wait_idle()


def test_streams_end_when_their_gateway_leaves(server: Scaled, reference: Reference) -> None:
    one_gateway_leaves(server, reference)
    the_system_leaves(server, reference, patient=False)
