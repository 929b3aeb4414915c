"""Processes that the launcher restarts, on records of nodes like Ray's."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.experimental import internal_kv

from hardware.ub import UbSegment
from serving.cluster.nodes import SEGMENT_PREFIX
from serving.cluster.session import SystemSession
from serving.config.cluster import ClusterConfig
from serving.faults.injected import faults_path
from serving.launch import local_cluster as cluster_module
from serving.launch import system_files
from serving.launch.deploying import StartError
from serving.launch.local_cluster import LocalCluster
from serving.launch.ray_parts import HELPERS
from serving.launch.worker_seed import WorkerSeed


@dataclass
class Process:
    """The used part of `subprocess.Popen`."""

    dead: bool = False

    def poll(self) -> int | None:
        return -9 if self.dead else None


@dataclass
class Info:
    """A node's record of a process."""

    process: Process


@dataclass
class Node:
    """Ray's record of a node."""

    all_processes: dict[str, list[Info]] = field(default_factory=dict)
    node_id: str = "a node"
    gcs_starts: int = 0
    webui_url: str = "127.0.0.1:8265"
    _ray_params: Any = field(default_factory=SimpleNamespace)

    @classmethod
    def make(cls, *kinds: str) -> "Node":
        return cls({kind: [Info(Process())] for kind in kinds})

    def kill(self, kind: str) -> None:
        self.all_processes[kind][0].process.dead = True

    def kill_gcs_server(self, check_alive: bool) -> None:
        assert not check_alive, "it is dead already"
        self.all_processes.pop("gcs_server", None)

    def start_gcs_server(self) -> None:
        self.gcs_starts += 1
        self.all_processes["gcs_server"] = [Info(Process())]

    def start_api_server(self, include_dashboard: bool, raise_on_failure: bool) -> None:
        assert include_dashboard
        assert raise_on_failure
        assert self._ray_params.dashboard_port == 8265, "where it was"
        self.all_processes["dashboard"] = [Info(Process())]

    def get_gcs_client(self) -> "Node":
        return self

    def start_monitor(self) -> None:
        assert internal_kv.internal_kv_get_gcs_client() is self, "Ray's own asks through it which autoscaler there is"
        self.all_processes["monitor"] = [Info(Process())]


class Nodes:
    """Like `ray.cluster_utils.Cluster`."""

    def __init__(self) -> None:
        self.head_node = Node.make("raylet", "gcs_server", *HELPERS)
        self.worker_nodes: list[Node] = []
        self.asked: list[dict[str, Any]] = []

    def add_node(self, **arguments: Any) -> Node:
        self.asked.append(arguments)
        self.worker_nodes.append(Node.make("raylet"))
        return self.worker_nodes[-1]

    def remove_node(self, node: Node, allow_graceful: bool) -> None:
        assert not allow_graceful
        self.worker_nodes.remove(node)


def cluster(**options: Any) -> tuple[LocalCluster, Nodes]:
    made = LocalCluster(ClusterConfig(**options), SystemSession("abc123", Path("/nowhere"), "token"))
    nodes = Nodes()
    made._nodes = nodes
    made._workers = [(nodes.add_node(number=number), {"number": number}) for number in (1, 2)]
    nodes.asked.clear()
    return made, nodes


def lose(tended: LocalCluster, *nodes: str) -> None:
    """Make Ray declare nodes dead."""
    tended._lost_nodes = frozenset(nodes)


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@contextlib.contextmanager
def broken(owner: object, name: str, error: Exception) -> Iterator[None]:
    """A process that cannot be started for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, failing(error))
        yield


def test_while_all_live_nothing_is_done() -> None:
    tended, nodes = cluster()
    assert tended.tend() is None
    assert (nodes.head_node.gcs_starts, nodes.asked) == (0, [])


def test_a_dead_gcs_is_started_again() -> None:
    tended, nodes = cluster()
    for starts in (1, 2):
        nodes.head_node.kill("gcs_server")
        assert tended.tend() is None
        assert tended.tend() is None
        assert nodes.head_node.gcs_starts == starts


@pytest.fixture
def no_client() -> Iterator[None]:
    """This process is not connected to Ray, as after the launcher has disconnected."""
    internal_kv._internal_kv_reset()
    yield
    internal_kv._internal_kv_reset()


@pytest.mark.usefixtures("no_client")
@pytest.mark.parametrize("kind", HELPERS)
def test_a_dead_helper_is_started_again_and_said(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    tended, nodes = cluster()
    for _ in range(2):
        nodes.head_node.kill(kind)
        assert tended.tend() is None
        assert kind not in nodes.head_node.all_processes, "a GCS that was killed with it is noticed first"
        assert tended.tend() is None
        assert not nodes.head_node.all_processes[kind][0].process.dead
    assert [record.message for record in caplog.records] == [f"Ray's {kind} has died; restarting it"] * 2


def test_a_dashboard_that_does_not_come_up_is_tried_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tended, nodes = cluster()
    nodes.head_node.kill("dashboard")
    assert tended.tend() is None
    with broken(nodes.head_node, "start_api_server", RuntimeError("the port is taken")):
        with pytest.raises(RuntimeError, match="port is taken"):
            tended.tend()
        assert tended.tend() is None, "not at once"
    monkeypatch.setattr("serving.launch.ray_parts.time.monotonic", lambda: float("inf"))
    assert tended.tend() is None
    assert not nodes.head_node.all_processes["dashboard"][0].process.dead


def test_a_gcs_that_does_not_come_up_is_tried_again() -> None:
    tended, nodes = cluster()
    nodes.head_node.kill("gcs_server")
    with broken(nodes.head_node, "start_gcs_server", OSError("no process can be made")):
        with pytest.raises(OSError, match="no process"):
            tended.tend()
    assert tended.tend() is None
    assert nodes.head_node.gcs_starts == 1


def test_without_storage_a_dead_gcs_is_the_end() -> None:
    tended, nodes = cluster(gcs_storage="memory")
    nodes.head_node.kill("gcs_server")
    assert "GCS has died" in (tended.tend() or "")
    assert nodes.head_node.gcs_starts == 0


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    """Nodes that got another raylet."""
    given: list[Node] = []

    def start(node: Node) -> None:
        given.append(node)
        node.node_id = f"again {len(given)}"
        node.all_processes["raylet"] = [Info(Process())]

    monkeypatch.setattr(cluster_module, "start_raylet_again", start)
    return given


def test_everything_on_the_first_node_is_started_again(again: list[Node], caplog: pytest.LogCaptureFixture) -> None:
    tended, nodes = cluster()
    for _ in range(2):
        nodes.head_node.kill("raylet")
        assert tended.tend() is None
        assert tended.tend() is None
    assert again == [nodes.head_node] * 2
    assert [record.message.partition(";")[2] for record in caplog.records] == [" restarting everything on it"] * 2


def test_a_first_node_that_is_frozen_too(again: list[Node]) -> None:
    tended, nodes = cluster()
    lose(tended, nodes.head_node.node_id)
    for _ in range(2):
        assert tended.tend() is None
    assert again == [nodes.head_node], "once: it is another node for Ray then"


def test_a_first_node_that_does_not_come_up_is_tried_again(again: list[Node]) -> None:
    tended, nodes = cluster()
    nodes.head_node.kill("raylet")
    with broken(cluster_module, "start_raylet_again", RuntimeError("the machine is busy")):
        with pytest.raises(RuntimeError, match="busy"):
            tended.tend()
    del nodes.head_node.all_processes["raylet"]
    assert tended.tend() is None
    assert again == [nodes.head_node]


def test_a_dead_gcs_is_there_before_a_node_that_needs_it(again: list[Node]) -> None:
    tended, nodes = cluster()
    nodes.head_node.kill("raylet")
    nodes.head_node.kill("gcs_server")
    assert tended.tend() is None
    assert (nodes.head_node.gcs_starts, again) == (1, [nodes.head_node])


def test_another_node_is_started_anew_as_it_was() -> None:
    tended, nodes = cluster()
    nodes.worker_nodes[1].kill("raylet")
    assert tended.tend() is None
    assert nodes.asked == [{"number": 2}]
    assert tended.tend() is None
    assert len(nodes.asked) == 1
    assert len(nodes.worker_nodes) == 2


def test_a_node_that_ray_has_given_up_is_ended_and_started_anew() -> None:
    tended, nodes = cluster()
    frozen = nodes.worker_nodes[0]
    frozen.node_id = "frozen"
    lose(tended, "frozen", "one of long ago")
    assert tended.tend() is None
    assert frozen not in nodes.worker_nodes
    assert nodes.asked == [{"number": 1}]
    assert tended.tend() is None
    assert len(nodes.asked) == 1


def test_or_left_out_if_so_configured() -> None:
    tended, nodes = cluster(restart_nodes=False)
    nodes.worker_nodes[0].kill("raylet")
    for _ in range(3):
        assert tended.tend() is None
    assert nodes.asked == []
    assert len(nodes.worker_nodes) == 1


def test_a_node_that_does_not_come_up_is_tried_again() -> None:
    tended, nodes = cluster()
    nodes.worker_nodes[0].kill("raylet")
    with broken(nodes, "add_node", RuntimeError("no port is free")):
        with pytest.raises(RuntimeError, match="no port is free"):
            tended.tend()
    assert tended.tend() is None
    assert nodes.asked == [{"number": 1}]


def test_memory_that_a_replica_leaves_after_its_replacement_has_started_is_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A frozen replica's segment remained until the next replica of its kind started."""
    monkeypatch.setattr("serving.cluster.nodes.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(cluster_module, "SWEEP_PERIOD_S", 0.0)
    made, _ = cluster()
    paths = [tmp_path / f"{SEGMENT_PREFIX}{name}" for name in ("abc123-n-old", "abc123-n-new", "other-n")]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as replica:
        owners = (replica.pid, None, replica.pid)
        segments = [UbSegment.create(path, 4096, owner) for path, owner in zip(paths, owners, strict=True)]
        assert made.tend() is None
        assert all(path.exists() for path in paths), "its replacement is there, and it is not dead yet"
        replica.kill()
    assert made.tend() is None
    assert [path.exists() for path in paths] == [False, True, True], "another start's is not ours"
    for segment in segments:
        segment.close()


def test_what_ray_cannot_end_keeps_nothing_else_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise AssertionError("There are zombie processes left over after killing.")

    class Stubborn(Nodes):
        shutdown = staticmethod(fail)

    monkeypatch.setattr(system_files, "SHARED_MEMORY", tmp_path)
    ending = LocalCluster(ClusterConfig(), SystemSession("abc123", tmp_path / "session", "token"))
    ending._nodes = Stubborn()
    ending.session.pool_folder.mkdir(parents=True)
    segment = tmp_path / f"{SEGMENT_PREFIX}abc123-node-decode"
    segment.touch()
    with pytest.raises(AssertionError, match="zombie"):
        ending.stop()
    assert not segment.exists()
    assert not ending.session.folder.exists()
    ending.stop()


def test_faults_of_a_killed_tester_go_with_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_files, "SHARED_MEMORY", tmp_path)
    faults, others = faults_path(tmp_path, "abc123"), faults_path(tmp_path, "def456")
    for path in (faults, others):
        path.touch()
    LocalCluster(ClusterConfig(), SystemSession("abc123", tmp_path / "session", "token")).stop()
    assert (faults.exists(), others.exists()) == (False, True)


def test_a_start_waits_for_a_dashboard_that_still_starts_and_not_for_a_dead_one() -> None:
    started, nodes = cluster()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nodes.head_node.webui_url = f"127.0.0.1:{listening.getsockname()[1]}"
        started.wait_for_dashboard()
    nodes.head_node.kill("dashboard")
    with pytest.raises(StartError, match=r"Ray's dashboard failed: it exited \(logs: "):
        started.wait_for_dashboard()


def test_a_seed_that_died_is_replaced(tmp_path: Path) -> None:
    seed = WorkerSeed(tmp_path, ())
    launcher = LocalCluster(ClusterConfig(), SystemSession("abc123", tmp_path, "token"), seed=seed)
    launcher._nodes = Nodes()
    try:
        seed.end()
        assert launcher.tend() is None
        assert not seed.tend(), "it runs again"
    finally:
        seed.end()
