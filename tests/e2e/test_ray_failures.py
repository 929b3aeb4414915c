"""Ray's own parts die under load: what is under way goes on, and what died comes back in a stated time."""

import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from tests.e2e.server import STOP_S, Server, free_port, wait_for
from tests.e2e.streams import Streams, order
from tests.e2e.topology import small
from tests.kvpool.redis_process import REDIS_SERVER, needs_redis
from tests.live.workload import GREEDY, Ask, Reference, tokens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BACK_S = 60.0
"""Whatever died is back within this time. Measured are 1 to 5 s; machines may be slow, and busy besides."""
SLOW_STEPS = "\n[chaos]\nenabled = true\nleast_step_s = 0.02\n"
"""So that streams last: 150 tokens take 3 s."""
POOL = "\n[kvcache]\nreplicas = 1\nub_memory_mib = 8\nssd_mib = 0\nslab_kib = 64\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Server]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=1, decode=2)
    config.write_text(config.read_text() + SLOW_STEPS + POOL)
    with Server(config) as running:
        yield running
        took = running.interrupt()
        running.assert_nothing_left()
        assert took < STOP_S


def asks(seed: int) -> list[Ask]:
    """Eight requests of two prompts, so that both decode instances have some."""
    rng = random.Random(seed)
    prompts = [tokens(rng, 40), tokens(rng, 40)]
    return [Ask(prompts[i % 2], replace(GREEDY, max_tokens=150)) for i in range(8)]


def pids_of(server: Server, title: str) -> list[int]:
    """Processes with this in their title."""
    return [pid for pid, line in server.processes().items() if title in line]


def pid_of(server: Server, title: str) -> int:
    """The one process with this in its title."""
    (pid,) = pids_of(server, title)
    return pid


def kill_under_load(server: Server, seed: int, *titles: str) -> None:
    """Kill processes while streams run; all streams end, and none has failed."""

    async def scene() -> list[list[int]]:
        streams = Streams(server, asks(seed))
        running = await streams.start()
        for title in titles:
            os.kill(pid_of(server, title), signal.SIGKILL)
        await running
        assert all(stream.finish == "length" for stream in streams.streams)
        return [stream.tokens for stream in streams.streams]

    told = asyncio.run(scene())
    again = Streams(server, asks(seed)[:2])
    asyncio.run(again.run())
    assert told == [again.streams[i % 2].tokens for i in range(8)], "as undisturbed"


def replace_a_decode_instance(server: Server) -> float:
    """Kill one and wait until another one serves. Returns: how long that took [s]."""
    begun = time.monotonic()
    gone = server.replicas("decode")[0]
    os.kill(gone["pid"], signal.SIGKILL)

    def back() -> bool:
        listed = {replica["replica"] for replica in server.replicas("decode")}
        return len(listed) == 2 and gone["replica"] not in listed

    wait_for(back, "it is replaced", BACK_S, server.cluster)
    return time.monotonic() - begun


def test_serves_controller_dies(server: Server) -> None:
    kill_under_load(server, 1, "ServeController")
    replace_a_decode_instance(server)
    server.wait_idle()


def test_the_gcs_dies(server: Server) -> None:
    before = pids_of(server, "gcs_server")
    kill_under_load(server, 2, "gcs_server")
    wait_for(lambda: pids_of(server, "gcs_server") not in ([], before), "there is another one", BACK_S)
    replace_a_decode_instance(server)
    token = {"Authorization": f"Bearer {server.printed('dashboard token')}"}
    url = server.printed("Ray dashboard")
    wait_for(lambda: "decode" in _applications(server, url, token), "Ray's dashboard knows its state again", BACK_S)
    server.wait_idle()


def _applications(server: Server, url: str, token: dict[str, str]) -> str:
    with contextlib.suppress(OSError):
        return server.get("/api/serve/applications/", url=url, headers=token)
    return ""


def test_everything_of_ray_that_can_die_dies_at_once(server: Server, reference: Reference) -> None:
    kill_under_load(server, 4, "ServeController", "MembershipActor", "PoolControlActor", "gcs_server")
    ask = Ask(tokens(random.Random(5), 30), replace(GREEDY, max_tokens=8))
    told = server.post("/v1/completions", order(ask))["choices"][0]["token_ids"]
    assert tuple(told) == tuple(reference.output(ask.prompt, ask.sampling))
    replace_a_decode_instance(server)
    wait_for(lambda: len(server.cluster()["kvcache"]["servers"]) == 1, "the pool is known again", BACK_S)
    server.wait_idle()


def test_the_agents_and_the_dashboard_die(server: Server) -> None:
    titles = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/dashboard.py", "log_monitor.py")
    wait_for(lambda: all(pids_of(server, title) for title in titles), "all are there", BACK_S, server.processes)
    before = {title: pid_of(server, title) for title in titles}
    raylet = pid_of(server, "raylet/raylet")
    kill_under_load(server, 8, *titles)
    for title in titles:
        wait_for(lambda: pids_of(server, title) not in ([], [before[title]]), f"{title} is back", BACK_S)  # noqa: B023
    assert pid_of(server, "raylet/raylet") == raylet
    replace_a_decode_instance(server)  # which needs the agent of its environment
    token = {"Authorization": f"Bearer {server.printed('dashboard token')}"}
    url = server.printed("Ray dashboard")
    wait_for(lambda: "decode" in _applications(server, url, token), "Ray's dashboard is where it was", BACK_S)
    server.wait_idle()


def test_the_first_node_dies(server: Server, reference: Reference) -> None:
    """All that serves is on it, and comes back without anybody's doing."""
    gone = set(server.processes())
    os.kill(pid_of(server, "raylet/raylet"), signal.SIGKILL)
    wait_for(lambda: not gone & set(pids_of(server, "ray::")), "what ran there has ended", BACK_S, server.processes)

    def serves() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{server.url}/ready", timeout=1.0).status_code == 200
        return False

    wait_for(serves, "it serves again", BACK_S)
    ask = Ask(tokens(random.Random(9), 30), replace(GREEDY, max_tokens=8))
    told = server.post("/v1/completions", order(ask))["choices"][0]["token_ids"]
    assert tuple(told) == tuple(reference.output(ask.prompt, ask.sampling))
    wait_for(lambda: len(server.replicas("decode")) == 2, "all of it", BACK_S, server.cluster)
    server.wait_idle()


# ---- Redis behind the GCS, Serve's proxy before the gateway ----------------------------------------------------------


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis with a password, on loopback."""
    assert REDIS_SERVER is not None, "CI must have redis-server"
    port, password = free_port(), secrets.token_hex(8)
    folder = tmp_path_factory.mktemp("redis")
    command = [REDIS_SERVER, "--port", str(port), "--bind", "127.0.0.1", "--requirepass", password]
    command += ["--dir", str(folder), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield f"redis://:{password}@127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def behind_proxy(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, redis_url: str) -> Iterator[Server]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=1, decode=1)
    text = config.read_text().replace("[cluster]", f'[cluster]\ngcs_storage = "{redis_url}"')
    config.write_text(text + SLOW_STEPS + '\n[gateway]\nserver = "serve"\n')
    with Server(config) as running:
        yield running
        running.interrupt()
        running.assert_nothing_left()


@needs_redis
def test_the_gcs_dies_and_redis_remembers(behind_proxy: Server) -> None:
    server = behind_proxy
    kill_under_load(server, 6, "gcs_server")
    gone = server.replicas("decode")[0]
    os.kill(gone["pid"], signal.SIGKILL)
    wait_for(lambda: [r for r in server.replicas("decode") if r["pid"] != gone["pid"]] != [], "it is replaced", BACK_S)
    server.wait_idle()


@needs_redis
def test_the_proxy_dies_streams_are_cut_and_the_door_opens_again(behind_proxy: Server) -> None:
    server = behind_proxy
    body = json.dumps(order(asks(7)[0], stream=True))
    sent = {"Content-Type": "application/json"}
    with httpx.stream("POST", f"{server.url}/v1/completions", content=body, headers=sent, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(pid_of(server, "ProxyActor"), signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(httpx.TransportError):
            list(lines)
        assert time.monotonic() - begun < 5.0, "cut, not left hanging"

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{server.url}/health", timeout=1.0).status_code == 200
        return False

    wait_for(answers, "the proxy is back", BACK_S)
    server.wait_idle()
