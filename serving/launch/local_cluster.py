"""A local Ray cluster with virtual NPUs: one node, or several Ray nodes on this machine."""

import contextlib
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import ray

from hardware.ray_resources import first_hosts, node_labels, node_resources, silence_npu_probe
from hardware.ub.file import remove_stale
from serving.cluster.disk_watch import DiskWatch
from serving.cluster.host_environment import health_settings
from serving.cluster.nodes import SEGMENT_PREFIX, SHARED_MEMORY, SWEEP_PERIOD_S, sweep
from serving.cluster.session import SystemSession
from serving.config.checks import check_gcs_storage
from serving.config.cluster import ClusterConfig, NodeConfig
from serving.config.health import HealthConfig
from serving.config.serve import ServeConfig
from serving.launch.deploying import StartError, endpoint, is_ready
from serving.launch.machine import any_free_port
from serving.launch.patience import StartWait
from serving.launch.ray_parts import (
    HelperTender,
    be_patient,
    dead,
    end_started,
    hide_command_line,
    keep_agents,
    leave_ray,
    start_beside_dashboard,
    start_raylet_again,
)
from serving.launch.reaper import Reaper, remove
from serving.launch.system_files import system_file_prefixes
from serving.launch.worker_seed import WorkerSeed
from serving.terminal import say

logger = logging.getLogger(__name__)


OBJECT_STORE_BYTES = 256 << 20
"""Per node. Only handoffs between nodes use it, in chunks."""
FORKED = {"RAY_worker_maximum_startup_concurrency": "16"}
"""Ray starts one worker a core at a time, because each imports for a second; forks need not wait for each other."""
CONNECT_S = 2.0
WATCH_PERIOD_S = 1.0
"""Interval at which the launcher queries Ray for dead nodes [s]."""


class LocalCluster:
    """Starts Ray for one configuration, keeps its processes running, and stops all that it started.

    Args:
        asked: whether a stop was requested, which ends a wait for Ray.
        seed: forks Ray's workers; by default Ray starts them.
    Effects: owns this session's UB segments and its folder.
    """

    def __init__(
        self,
        config: ClusterConfig,
        session: SystemSession,
        health: HealthConfig | None = None,
        asked: Callable[[], bool] = lambda: False,
        seed: WorkerSeed | None = None,
    ) -> None:
        self.session = session
        self._seed = seed
        self._asked = asked
        self._config = config
        self._health = health or HealthConfig()
        self._storage = ray_storage(config.gcs_storage, session)
        self._nodes: Any = None
        self._workers: list[tuple[Any, dict[str, Any]]] = []
        """Nodes other than the head, with their start arguments."""
        self._lost_nodes: frozenset[str] = frozenset()
        """Nodes that Ray has declared lost, dead or frozen."""
        self._helpers = HelperTender()
        self._reaper: Reaper | None = None
        self._disk = DiskWatch(session.folder, logger.warning)
        self._connecting = threading.Lock()
        self._sweep_at = 0.0

    def start(self) -> None:
        """Start the nodes and connect this process.

        Raises: RuntimeError, OSError from Ray if a port is in use or a process fails to start.
        Effects: removes segments of a crashed start; changes this process's environment, which Ray's processes
            inherit.
        """
        for path in remove_stale(SHARED_MEMORY, SEGMENT_PREFIX):
            logger.info("removed %s, left behind by a crash", path)
        silence_npu_probe()
        keep_agents(self._seed.client if self._seed is not None else ())
        start_beside_dashboard()
        be_patient(say, self._asked)
        hide_command_line()
        if self._reaper is None:
            self._reaper = Reaper(system_file_prefixes(self.session.name), self.session.pool_folder)
        self.session.set_environment(self._storage.environment)
        if self._seed is not None:
            self.session.set_environment(FORKED)
        from ray.cluster_utils import Cluster  # heavy, and only here

        nodes = self._config.nodes
        hosts = first_hosts([node.npus for node in nodes])
        head = {
            **_node_arguments(nodes[0], hosts[0]),
            **self._storage.arguments,
            "include_dashboard": True,
            "include_log_monitor": False,  # it reads all logs ten times a second for drivers that print them: none does
            "dashboard_host": self._config.dashboard_host,
            "dashboard_port": self._dashboard_port(),
            "temp_dir": str(self.session.ray_folder),
            "_system_config": health_settings(self._health),
        }
        self._nodes = Cluster()
        self._nodes.add_node(**head)
        for node, host in zip(nodes[1:], hosts[1:], strict=True):
            arguments = _node_arguments(node, host)
            self._workers.append((self._nodes.add_node(**arguments), arguments))
        self.connect()
        threading.Thread(target=self._watch_nodes, args=(self._nodes,), name="nodes", daemon=True).start()

    def _dashboard_port(self) -> int:
        """A fixed port, so that the dashboard can be restarted at the same one.

        Ray's own choice is the first free port from 8265 on: the next cluster started on this machine would get the
        port of a dashboard that has just died.
        """
        return self._config.dashboard_port or any_free_port(self._config.dashboard_host)

    def abandon(self) -> None:
        """Stop the processes of a failed `start`, so that it can be called again."""
        leave_ray()
        end_started()
        self._nodes = None
        self._workers.clear()
        self._storage.forget()

    def connect(self) -> None:
        """Connect this process to Ray, if it is not connected. Thread-safe. Raises: Ray's errors."""
        with self._connecting:
            if not ray.is_initialized():
                ray.init(address=self._nodes.address, log_to_driver=False, logging_level=logging.ERROR)

    def let_go(self) -> None:
        """Disconnect this process from Ray but keep supervising Ray's processes.

        Ray's C++ code ends a process that is connected through the first node when that node dies.
        """
        leave_ray()

    @property
    def dashboard_url(self) -> str:
        """URL of Ray's dashboard, for example `http://127.0.0.1:8265`."""
        return f"http://{self._nodes.head_node.webui_url}"

    @property
    def dashboard_place(self) -> str:
        """Empty: the dashboard is on this host."""
        return ""

    @property
    def token_flag(self) -> str:
        """Empty: a command of the same user on this machine finds the token."""
        return ""

    @property
    def logs(self) -> str:
        """Folder of the session's logs."""
        return str(self.session.logs)

    def wait_for_dashboard(self, pause_s: float = 0.05) -> None:
        """Wait until Ray's dashboard answers: Ray's start continued without it.

        Raises: StartError if it exits, or does not answer for as long as any other part may take.
        """
        place = urlsplit(self.dashboard_url)
        start_wait = StartWait("Ray's dashboard", time.monotonic())
        while True:
            with contextlib.suppress(OSError), socket.create_connection((place.hostname, place.port), CONNECT_S):
                return
            ended = "it exited" if dead(self._nodes.head_node, "dashboard") else ""
            if cause := start_wait.cause(time.monotonic(), 0, ended):
                raise StartError(f"{cause} (logs: {self.logs})")
            time.sleep(pause_s)

    def ready_gateways(self, config: ServeConfig) -> list[str]:
        """The gateway's URL if it is ready."""
        url = endpoint(config)
        return [url] if is_ready(url) else []

    def tend(self) -> str | None:
        """Restart dead processes that Ray does not restart itself: the GCS, nodes other than the first, the dashboard
        and monitors, and the reaper. Free the memory of dead replicas. Report a full disk.

        Returns: why the system cannot continue, or None. Call it twice a second, from the thread that called `start`:
            the kernel kills a thread's child processes when the thread ends.
        Raises: RuntimeError, OSError from Ray if a process fails to start; retry then.
        """
        self._tend_reaper()
        self._tend_seed()
        self._disk.tend()
        head = self._nodes.head_node
        if dead(head, "gcs_server") or "gcs_server" not in head.all_processes:  # or its restart failed
            if not self._storage.survives:
                return 'Ray\'s GCS has died; with [cluster] gcs_storage = "embedded" it would have been started again'
            logger.warning("Ray's GCS has died; restarting it with its stored state")
            head.kill_gcs_server(check_alive=False)
            head.start_gcs_server()
        if dead(head, "raylet") or "raylet" not in head.all_processes or head.node_id in self._lost_nodes:
            logger.warning("the first Ray node has died or no longer responds; restarting everything on it")
            start_raylet_again(head)
        for index, (node, arguments) in enumerate(self._workers):
            if dead(node, "raylet") or node.node_id in self._lost_nodes:
                logger.warning("a Ray node has died or no longer responds; stopping its remaining processes")
                if node in self._nodes.worker_nodes:
                    self._nodes.remove_node(node, allow_graceful=False)
                if self._config.restart_nodes:
                    self._workers[index] = (self._nodes.add_node(**arguments), arguments)
                else:
                    del self._workers[index]
                break  # one per call
        self._helpers.tend(head)
        self._sweep()
        return None

    def _tend_reaper(self) -> None:
        try:
            if self._reaper is not None and self._reaper.tend():
                logger.warning("the process that cleans up after a killed launcher has died; it was replaced")
        except OSError as error:  # no process or memory available: the other parts must be tended nevertheless
            logger.warning("the process that cleans up after a killed launcher cannot be restarted (%s)", error)

    def _tend_seed(self) -> None:
        try:
            if self._seed is not None and self._seed.tend():
                logger.warning("the process from which workers are forked has died; it was replaced")
        except OSError as error:
            logger.warning("the process from which workers are forked cannot be restarted (%s)", error)

    def _sweep(self) -> None:
        """Remove segments of earlier starts, as replicas do, because there may be no replica."""
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + SWEEP_PERIOD_S
        sweep(self.session.name)

    def stop(self, *, keep_logs: bool = False) -> None:
        """Stop Ray and remove all that this start left on the machine. Safe to call twice, or after a failed start.

        Raises: Ray's errors if it cannot stop a process; all other steps are still done.
        """
        with contextlib.ExitStack() as last_first:
            last_first.callback(self._remove_system_files, keep_logs=keep_logs)
            last_first.callback(end_started)
            if self._seed is not None:
                last_first.callback(self._seed.end)
            if self._nodes is not None:
                last_first.callback(self._nodes.shutdown)
                self._nodes = None
            if ray.is_initialized():
                last_first.callback(leave_ray)

    def _remove_system_files(self, *, keep_logs: bool) -> None:
        remove(self.session.pool_folder, system_file_prefixes(self.session.name))
        if self._reaper is not None:
            self._reaper.dismiss()
        if not keep_logs:
            self.session.remove()

    def _watch_nodes(self, nodes: Any) -> None:
        """Update the dead nodes until `stop`. Runs on its own thread because Ray's call may block indefinitely."""
        while self._nodes is nodes:
            with contextlib.suppress(Exception):  # any error of Ray without its GCS or during its shutdown
                table = nodes.global_state.node_table()
                self._lost_nodes = frozenset(node["NodeID"] for node in table if not node["Alive"])
            time.sleep(WATCH_PERIOD_S)


def _cpus(node: NodeConfig) -> int:
    return node.cpus or os.cpu_count() or 1


def _node_arguments(node: NodeConfig, first_host: int) -> dict[str, Any]:
    return {
        "num_cpus": _cpus(node),
        "num_gpus": 0,
        "resources": node_resources(node.npus, node.ub_memory_mib),
        "labels": node_labels(first_host),
        "object_store_memory": OBJECT_STORE_BYTES,
    }


# Persistent storage of Ray's control plane (its GCS): nodes, actors, Serve's targets.
#
#     embedded    RocksDB in the session's folder: a restarted GCS recovers everything; no other service needed
#     redis://…   a Redis that outlives this machine; for clusters whose head node may move
#     memory      none: when the GCS dies, Ray dies with it a minute later
#
# Does not import Ray.

EMBEDDED, MEMORY = "embedded", "memory"


@dataclass(frozen=True, slots=True)
class RayStorage:
    """Storage settings for the start of Ray.

    Args:
        environment: for this process and its children; see `SystemSession.set_environment`.
        arguments: of `ray.init` (each with a leading underscore) and of a `Node`.
        survives: whether a restarted GCS recovers everything.
        folder: location of the storage, if on this machine.
    """

    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict, repr=False)
    survives: bool = True
    folder: Path | None = None

    def forget(self) -> None:
        """Delete the folder of a GCS that failed to start, if it has one."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def ray_storage(kind: str, session: SystemSession) -> RayStorage:
    """The storage for `[cluster] gcs_storage`.

    Args:
        kind: `embedded`, `memory` or `redis://[user:password@]host:port`, `rediss://` for TLS.
    Raises: ConfigError for any other value.
    """
    if kind == MEMORY:
        return RayStorage({}, survives=False)
    if kind == EMBEDDED:
        folder = session.folder / "gcs"
        return RayStorage({"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder)}, folder=folder)
    check_gcs_storage(kind)
    url = urlsplit(kind)
    scheme = "rediss://" if url.scheme == "rediss" else ""
    address = f"{scheme}{url.hostname}:{url.port or 6379}"
    named = {"redis_username": unquote(url.username or ""), "redis_password": unquote(url.password or "")}
    # Starts that share a Redis must not find each other's nodes.
    space = f"cloudmatrix-{session.name}"
    environment = {"RAY_REDIS_ADDRESS": address, "RAY_external_storage_namespace": space}
    return RayStorage(environment, {name: value for name, value in named.items() if value})
