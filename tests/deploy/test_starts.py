"""Ray on hosts made of namespaces, begun by what the files of deploy/ say: units, Compose, the operator of KubeRay."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.hosts import Hosts, hosts
from tests.deploy.kubernetes import Manifest, kustomized
from tests.deploy.starts import TOKEN, TOKEN_FILE, Start, group, service, unit
from tests.deploy.tools import DEPLOY
from tests.e2e.server import wait_for

pytestmark = pytest.mark.slow

REDIS_PORT, HEAD_PORT = 6379, 6379
PROBE_S = 20.0
"""How long a probe may take, as deploy/compose.yaml has it."""
_NODES = """
import json, logging, ray
ray.init(address="auto", logging_level=logging.CRITICAL, log_to_driver=False)
print("NODES", json.dumps([one["Resources"] for one in ray.nodes() if one["Alive"]]))
"""
_GATEWAY = """
import http.server as s
class Door(s.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/-/healthz" else 404); self.end_headers(); self.wfile.write(b"success")
s.HTTPServer(("127.0.0.1", 8000), Door).serve_forever()
"""


@pytest.fixture(scope="module")
def three() -> Iterator[Hosts]:
    """Hosts of these names, as Compose's network knows its services."""
    with hosts("head", "worker-1", "redis") as made:
        yield made


@pytest.fixture
def fresh(three: Hosts) -> Hosts:
    """The same, empty: whatever ran there is gone."""
    for name in three.addresses:
        three.does("kill", name)
    three.does("up", *three.addresses)
    for name in three.addresses:
        three.run(name, "sh", "-c", f"echo {TOKEN} >{TOKEN_FILE}; mkdir /tmp/data")
    return three


@contextlib.contextmanager
def running(made: Hosts, folder: Path, starts: dict[str, Start]) -> Iterator[None]:
    """Begin hosts, each in the foreground."""
    with contextlib.ExitStack() as stack:
        for name, start in starts.items():
            log = stack.enter_context((folder / name).open("wb"))
            process = subprocess.Popen(made.command(name, *start.line()), stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        try:
            yield
        except AssertionError as error:
            for name in starts:
                error.add_note(f"{name}: {(folder / name).read_text(errors='replace')[-2000:]}")
            raise


def offered(made: Hosts, start: Start) -> list[tuple[float, float]]:
    """NPUs and UB memory of each host, as the head knows them; nothing as long as it does not answer."""
    told = made.run("head", *start.within([sys.executable, "-c", _NODES]), check=False)
    nodes = [json.loads(line.removeprefix("NODES ")) for line in told.splitlines() if line.startswith("NODES ")]
    return sorted((node.get("NPU", 0.0), node.get("UB_MEMORY", 0.0)) for one in nodes for node in one)


def passes(made: Hosts, host: str, start: Start, probe: str) -> bool:
    """Whether a probe says yes, in time."""
    try:
        line = made.command(host, *start.within(start.probes[probe]))
        return subprocess.run(line, capture_output=True, timeout=PROBE_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    wait_for(condition, what, 180.0)


def test_units(fresh: Hosts, tmp_path: Path) -> None:
    common = {"RAY_AUTH_TOKEN_PATH": TOKEN_FILE}
    address = fresh.addresses["head"]
    head = unit("cloudmatrix-head", {**common, "CPUS": "0", "NPUS": "0", "UB_MEMORY_MIB": "0", "HOST_ADDRESS": address})
    worker = unit("cloudmatrix-worker", {**common, "UB_MEMORY_MIB": "512", "HEAD_ADDRESS": f"{address}:{HEAD_PORT}"})
    with running(fresh, tmp_path, {"head": head, "worker-1": worker}):
        inside = Start([], {**head.environment, "RAY_AUTH_MODE": "token"})
        wait_until("both hosts are there", lambda: offered(fresh, inside) == [(0.0, 0.0), (8.0, 512.0)])
        # Who does not know the token gets nothing.
        assert offered(fresh, Start([])) == []


def test_compose(fresh: Hosts, tmp_path: Path) -> None:
    redis, head, worker = service("redis"), service("head"), service("worker-1")
    redis = Start(
        ["sh", "-c", 'cd /tmp/data && exec "$@"', "sh", *redis.command, "--protected-mode", "no"], probes=redis.probes
    )
    with running(fresh, tmp_path, {"redis": redis, "head": head, "worker-1": worker}):
        wait_until("Redis", lambda: passes(fresh, "redis", redis, "healthy"))
        wait_until("both hosts are there", lambda: offered(fresh, head) == [(0.0, 0.0), (8.0, 2048.0)])
        assert passes(fresh, "head", head, "healthy")
        assert passes(fresh, "worker-1", worker, "healthy")
        application = service("application")
        # From a host without Ray, as from a container of its own.
        fresh.run("redis", *application.within(application.command))
        gateway = f"http://{fresh.addresses['worker-1']}:8000"
        wait_until(
            "a gateway",
            lambda: "success" in fresh.run("redis", "wget", "-q", "-O-", f"{gateway}/-/healthz", check=False),
        )
        wait_until("ready", lambda: "ready" in fresh.run("redis", "wget", "-q", "-O-", f"{gateway}/ready", check=False))
        fresh.does("kill", "head")
        assert not passes(fresh, "worker-1", worker, "healthy")
        assert "success" in fresh.run("redis", "wget", "-q", "-O-", f"{gateway}/-/healthz")


def test_kuberay(fresh: Hosts, tmp_path: Path) -> None:
    manifests = kustomized(DEPLOY / "kuberay")
    assert isinstance(manifests, list)
    added = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    kept = {
        "RAY_REDIS_ADDRESS": f"redis:{REDIS_PORT}",
        "REDIS_PASSWORD": "hidden",
        "RAY_external_storage_namespace": "uid",
    }
    head = group(manifests, 0, {**added, **kept})
    decode = group(manifests, 2, added, f"{fresh.addresses['head']}:{HEAD_PORT}")
    with running(fresh, tmp_path, {"redis": _redis(manifests), "head": head, "worker-1": decode}):
        wait_until("both hosts are there", lambda: offered(fresh, head) == [(0.0, 0.0), (4.0, 512.0)])
        wait_until("alive", lambda: passes(fresh, "worker-1", decode, "livenessProbe"))
        assert not passes(fresh, "worker-1", decode, "readinessProbe"), "there is no gateway yet"
        door = fresh.command("worker-1", sys.executable, "-c", _GATEWAY)
        with subprocess.Popen(door, stderr=subprocess.DEVNULL) as gateway:
            wait_until("ready", lambda: passes(fresh, "worker-1", decode, "readinessProbe"))
            gateway.terminate()


def _redis(manifests: list[Manifest]) -> Start:
    """The pod of the StatefulSet, with its data where a test may write."""
    (stateful,) = (one for one in manifests if one["kind"] == "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    return Start([word.replace("/data", "/tmp/data") for word in container["command"]], {"REDIS_PASSWORD": "hidden"})
