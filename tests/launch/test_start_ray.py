"""A start of Ray that failed on a busy machine is tried once more."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.session import SystemSession
from serving.launch import launch, ray_parts
from serving.launch.deploying import StartError
from serving.launch.launch import Interrupt, Interrupted
from serving.launch.local_cluster import ray_storage
from serving.launch.ray_parts import end_started, start_beside_dashboard, too_slow

SLOW = Exception(
    "The current node timed out during startup. This could happen because some of the raylet failed to startup or the "
    "GCS has become overloaded.\nMore lines."
)


class FakeCluster:
    """Fails to start with these errors in turn, then starts."""

    logs = "nowhere"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls: list[str] = []

    def start(self) -> None:
        """Replaces `LocalCluster.start`."""
        self.calls.append("start")
        if self.errors:
            raise self.errors.pop(0)

    def abandon(self) -> None:
        """Replaces `LocalCluster.abandon`."""
        self.calls.append("abandon")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "RETRY_PAUSE_S", 0.0)


def start(cluster: FakeCluster, interrupt: Interrupt | None = None) -> None:
    launch._start_ray(cluster, interrupt or Interrupt())  # type: ignore[arg-type]


def test_once_again_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = FakeCluster(SLOW)
    start(cluster)
    assert cluster.calls == ["start", "abandon", "start"]
    assert "did not start in time: is the machine busy? Trying once again" in capsys.readouterr().out


def test_but_not_twice() -> None:
    cluster = FakeCluster(SLOW, TimeoutError("no answer from the GCS"))
    with pytest.raises(StartError, match=r"^no answer from the GCS \(logs: "):
        start(cluster)
    assert cluster.calls == ["start", "abandon", "start"]


def test_the_part_that_exited_is_named_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    started = ray_parts._Started()
    monkeypatch.setattr(ray_parts, "_started", started)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as raylet:
        raylet.wait()
        started.add(raylet, "raylet")
    assert started.ended() == "Ray's raylet exited with code 3"
    with pytest.raises(StartError, match=r"^its raylet exited \(log: nowhere/raylet\.out\)$"):
        start(FakeCluster(SLOW, SLOW))


def test_what_does_not_change_is_told_at_once() -> None:
    cluster = FakeCluster(OSError("[Errno 98] Address already in use"))
    with pytest.raises(StartError, match="already in use"):
        start(cluster)
    assert cluster.calls == ["start"]


def test_whoever_has_pressed_ctrl_c_is_not_made_to_wait_for_another_try() -> None:
    interrupt = Interrupt()
    interrupt._handle()
    cluster = FakeCluster(SLOW)
    with pytest.raises(Interrupted):
        start(cluster, interrupt)
    assert cluster.calls == ["start", "abandon"]


@pytest.mark.parametrize(
    ("error", "slow"),
    [
        (SLOW, True),
        (TimeoutError(), True),
        (RuntimeError("Timed out waiting for file /tmp/x"), True),
        (RuntimeError("Failed to bind to 127.0.0.1:8265"), False),
        (ValueError("Resource quantities must be numbers"), False),
    ],
)
def test_how_a_busy_machine_is_known(error: Exception, slow: bool) -> None:
    assert too_slow(error) is slow


def test_of_a_node_that_did_not_come_up_every_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record of them exists: Ray writes the node's record last."""
    started = ray_parts._Started()
    monkeypatch.setattr(ray_parts, "_started", started)
    ended, running = (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) for code in ("pass", "input()")
    )
    started.add(ended)
    ended.communicate()
    started.add(running)
    assert started.processes == [running], "it does not grow with what is started again"
    end_started()
    assert running.returncode is not None
    running.communicate()


def test_the_second_try_knows_nothing_of_the_first(tmp_path: Path) -> None:
    storage = ray_storage("embedded", SystemSession("abc123", tmp_path, "token"))
    folder = Path(storage.environment["RAY_gcs_storage_path"])
    folder.mkdir()
    storage.forget()
    assert not folder.exists()
    ray_storage("memory", SystemSession("abc123", tmp_path, "token")).forget()


def test_ray_does_not_wait_for_its_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray polls the control store for the dashboard's address: it is there before the dashboard starts."""
    from ray._private import services

    kept: dict[bytes, bytes] = {}

    class Store:
        def __init__(self, address: str, cluster_id: str) -> None:
            kept[b"asked"] = f"{address} {cluster_id}".encode()

        def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, namespace: bytes) -> None:
            assert (overwrite, namespace) == (True, b"dashboard")
            kept[key] = value

    parameters = list(inspect.signature(services.start_api_server).parameters)
    assert parameters[2:6] == ["host", "gcs_address", "cluster_id_hex", "node_ip_address"], "Ray's own"
    monkeypatch.setattr(services, "GcsClient", Store)
    monkeypatch.setattr(services, "start_api_server", lambda *_, **__: dict(kept))
    start_beside_dashboard()
    start_beside_dashboard()
    start_api_server: Any = services.start_api_server
    local = start_api_server(True, True, "127.0.0.1", "gcs:1", "abc", "10.0.0.1", port=8265)
    assert local == {b"asked": b"gcs:1 abc", b"dashboard": b"127.0.0.1:8265"}
    everywhere = start_api_server(True, True, "0.0.0.0", "gcs:1", "abc", "10.0.0.1", port=8265)
    assert everywhere[b"dashboard"] == b"10.0.0.1:8265"
