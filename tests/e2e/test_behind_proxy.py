"""Two gateways behind Serve's proxy, with Redis behind the GCS: these die, and gateways leave in good order."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.deaths import BACK_S, SLOW_STEPS, asks, kill_under_load, pid_of
from tests.e2e.leaving import one_gateway_leaves, the_system_leaves
from tests.e2e.scaled import Scaled
from tests.e2e.server import free_port, wait_for
from tests.e2e.streams import order
from tests.e2e.topology import small
from tests.kvpool.redis_process import REDIS_SERVER, needs_redis
from tests.live.workload import Reference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis with a password, on loopback; without one the GCS keeps its state on disk."""
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, redis_url: str) -> Iterator[Scaled]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=1, decode=1)
    text = config.read_text().replace("[cluster]", f'[cluster]\ngcs_storage = "{redis_url}"')
    config.write_text(text + SLOW_STEPS + '\n[gateway]\nserver = "serve"\nreplicas = 2\n')
    with Scaled(config) as running:
        yield running


@needs_redis
def test_the_gcs_dies_and_redis_remembers(server: Scaled) -> None:
    kill_under_load(server, 6, "gcs_server")
    gone = server.replicas("decode")[0]
    os.kill(gone["pid"], signal.SIGKILL)
    wait_for(lambda: [r for r in server.replicas("decode") if r["pid"] != gone["pid"]] != [], "it is replaced", BACK_S)
    server.wait_idle()


def test_the_proxy_dies_streams_are_cut_and_the_door_opens_again(server: Scaled) -> None:
    body = json.dumps(order(asks(7)[0], stream=True))
    sent = {"Content-Type": "application/json"}
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
