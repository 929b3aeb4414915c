"""Ray on hosts made of namespaces, started by the files of deploy/: units, Compose, the operator of KubeRay."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen.exit_codes import ExitCode
from serving.tools.chaos.findings import find
from tests.deploy.hosts import Hosts, hosts
from tests.deploy.kubernetes import Manifest, kustomized
from tests.deploy.starts import TOKEN, TOKEN_FILE, Start, group, service, unit
from tests.deploy.supervised import HEAD, STORE, Streams, Supervised, begun, dashboard, without_head
from tests.deploy.tools import DEPLOY
from tests.e2e.server import wait_for

SAME = "tests/deploy/test_places.py::test_equal_labels_are_told_apart_and_everything_is_spread"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]

REDIS_PORT, HEAD_PORT = 6379, 6379
AWAY_S = 30.0
COMMAND_S = 120.0
PROBE_S = 20.0
"""How long a probe may take, as deploy/compose.yaml has it."""
LOOKING_S = 60.0
"""Time limit of one wait for Ray: each polling process takes seconds of a core."""
_NODES = """
import json, logging, sys, time, ray
wanted, end = json.loads(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while not ray.is_initialized():
    try:
        ray.init(address="auto", logging_level=logging.CRITICAL, log_to_driver=False)
    except Exception:
        if time.monotonic() > end:
            raise
        time.sleep(0.2)
while True:
    nodes = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    found = sorted([node.get("NPU", 0.0), node.get("UB_MEMORY", 0.0)] for node in nodes)
    if found == wanted or time.monotonic() > end:
        break
    time.sleep(0.2)
print("NODES", json.dumps(found))
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
    """Hosts of these names, like the services in Compose's network."""
    with hosts("head", "worker-1", "redis") as made:
        yield made


@pytest.fixture
def fresh(three: Hosts) -> Hosts:
    """The same, empty: earlier processes and files are removed."""
    for name in three.addresses:
        three.does("kill", name)
    three.does("up", *three.addresses)
    for name in three.addresses:
        three.run(name, "sh", "-c", f"echo {TOKEN} >{TOKEN_FILE}; mkdir /tmp/data")
    return three


@contextlib.contextmanager
def running(made: Hosts, folder: Path, starts: dict[str, Start]) -> Iterator[None]:
    """Start hosts, each in the foreground."""
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


def offered(made: Hosts, start: Start, wanted: list[tuple[float, float]], patience_s: float = LOOKING_S) -> bool:
    """Whether the head lists these NPUs and UB memory of the hosts; waits a while until it does."""
    look = [sys.executable, "-c", _NODES, json.dumps(wanted), str(patience_s)]
    told = made.run("head", *start.within(look), check=False)
    found = [json.loads(line.removeprefix("NODES ")) for line in told.splitlines() if line.startswith("NODES ")]
    return found == [[list(one) for one in wanted]]


def passes(made: Hosts, host: str, start: Start, probe: str) -> bool:
    """Whether a probe succeeds in time."""
    try:
        line = made.command(host, *start.within(start.probes[probe]))
        return subprocess.run(line, capture_output=True, timeout=PROBE_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    wait_for(condition, what, 180.0, pause_s=0.5)


def test_units(fresh: Hosts, tmp_path: Path) -> None:
    common = {"RAY_AUTH_TOKEN_PATH": TOKEN_FILE}
    address = fresh.addresses["head"]
    head = unit("cloudmatrix-head", {**common, "CPUS": "0", "NPUS": "0", "UB_MEMORY_MIB": "0", "HOST_ADDRESS": address})
    worker = unit("cloudmatrix-worker", {**common, "UB_MEMORY_MIB": "512", "HEAD_ADDRESS": f"{address}:{HEAD_PORT}"})
    with running(fresh, tmp_path, {"head": head, "worker-1": worker}):
        inside = Start([], {**head.environment, "RAY_AUTH_MODE": "token"})
        wait_until("both hosts are there", lambda: offered(fresh, inside, [(0.0, 0.0), (8.0, 512.0)]))
        # A client without the token is refused.
        nobody = fresh.run("head", *Start([]).within([sys.executable, "-c", _NODES, "[]", "0"]), check=False)
        assert "NODES" not in nobody


def test_compose(fresh: Hosts, tmp_path: Path) -> None:
    redis, head, worker = service("redis"), service("head"), service("worker-1")
    with begun(fresh, tmp_path, STORE, HEAD, "worker-1") as on:
        wait_until("Redis", lambda: passes(fresh, "redis", redis, "healthy"))
        wait_until("both hosts are there", lambda: offered(fresh, head, [(0.0, 0.0), (8.0, 2048.0)]))
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
        assert "decode" in on.cloudmatrix("worker-1", "scale", "decode", "1", "--hold", "1h", "--wait", *dashboard(on))
        with Streams(on, "worker-1", 1.0, 48) as streams:
            on.kill(HEAD)
            lost = time.monotonic()
            assert not passes(fresh, "worker-1", worker, "healthy")
            commands_without_head(on)
            time.sleep(max(0.0, lost + AWAY_S - time.monotonic()))
            on.replace(HEAD)
            wait_until("the hold is known", lambda: "cli" in hold_of_decode(on))
            assert "2 -> 1" in on.cloudmatrix("worker-1", "decisions", *dashboard(on))
            on.cloudmatrix("worker-1", "scale", "decode", "2", "--wait", *dashboard(on))
        assert streams.run is not None
        found = find(streams.run)
        assert (found.failed, found.reasons, streams.run.differences) == (0, {}, {})
        assert found.finished == found.exact > AWAY_S
        assert on.leaks("worker-1") == []


def commands_without_head(on: Supervised) -> None:
    """Run each command: those that need no head succeed; all others soon fail with one line that names the cause."""
    for words in without_head(on, "worker-1"):
        begun_at = time.monotonic()
        code, said = on.said("worker-1", "cloudmatrix", *words)
        assert time.monotonic() - begun_at < COMMAND_S, words
        assert "Traceback" not in said, said
        if words[0] == "status" or words[:2] in (("pool", "--url"), ("pool", "audit")):
            assert code == 0, (words, said)
        else:
            assert code in (ExitCode.USAGE, ExitCode.SERVER), (words, said)
            assert "start" in said.splitlines()[-1].lower(), (words, said)
    assert "the scaling board has not responded for" in on.cloudmatrix(
        "worker-1", "status", "--url", on.url("worker-1")
    )


def hold_of_decode(on: Supervised) -> str:
    """The pool's hold as Ray's dashboard reports it; empty while it does not respond."""
    url = f"http://{on.hosts.addresses[HEAD]}:8265/api/pools"
    _, said = on.said("worker-1", "curl", "-sS", "--max-time", "30", "-H", f"Authorization: Bearer {TOKEN}", url)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(next(one["hold"]["by"] for one in json.loads(said)["pools"] if one["pool"] == "decode"))
    return ""


def test_kuberay(fresh: Hosts, tmp_path: Path) -> None:
    """Redis starts last: Kubernetes starts pods in any order."""
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
    with running(fresh, tmp_path, {"head": head, "worker-1": decode}), contextlib.ExitStack() as later:
        wait_until("the head misses it", lambda: "connect to Redis" in (tmp_path / "head").read_text(errors="replace"))
        later.enter_context(running(fresh, tmp_path, {"redis": _redis(manifests)}))
        wait_until("both hosts are there", lambda: offered(fresh, head, [(0.0, 0.0), (4.0, 512.0)]))
        wait_until("alive", lambda: passes(fresh, "worker-1", decode, "livenessProbe"))
        assert not passes(fresh, "worker-1", decode, "readinessProbe"), "there is no gateway yet"
        door = fresh.command("worker-1", sys.executable, "-c", _GATEWAY)
        with subprocess.Popen(door, stderr=subprocess.DEVNULL) as gateway:
            wait_until("ready", lambda: passes(fresh, "worker-1", decode, "readinessProbe"))
            gateway.terminate()


def _redis(manifests: list[Manifest]) -> Start:
    """The pod of the StatefulSet, with its data in a folder writable for the test."""
    (stateful,) = (one for one in manifests if one["kind"] == "StatefulSet")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    return Start([word.replace("/data", "/tmp/data") for word in container["command"]], {"REDIS_PASSWORD": "hidden"})
