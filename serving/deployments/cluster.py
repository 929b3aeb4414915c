"""A local Ray cluster that presents virtual NPUs: one node, or several Ray nodes in this machine."""

import contextlib
import logging
import os
import threading
import time
from typing import Any

import ray

from hardware.ray_resources import first_hosts, node_labels, node_resources, silence_npu_probe
from hardware.ub.file import remove_stale
from serving.config.cluster import ClusterConfig, NodeConfig
from serving.config.health import HealthConfig
from serving.deployments.nodes import SEGMENT_PREFIX, SHARED_MEMORY, SWEEP_PERIOD_S, sweep
from serving.deployments.ray_parts import HelperTender, dead, hide_command_line, keep_agents
from serving.deployments.ray_storage import ray_storage
from serving.deployments.session import Session
from serving.runtime.injected_faults import faults_path

logger = logging.getLogger(__name__)


OBJECT_STORE_BYTES = 256 << 20
"""Per node. Only handoffs between nodes pass through it, in chunks."""
WATCH_PERIOD_S = 1.0
"""How often the launcher asks Ray which nodes it has given up."""


class LocalCluster:
    """Starts Ray for one configuration, keeps its parts alive, and ends everything that it started.

    Effects: owns this session's UB segments and its folder.
    """

    def __init__(self, config: ClusterConfig, session: Session, health: HealthConfig | None = None) -> None:
        self.session = session
        self._config = config
        self._health = health or HealthConfig()
        self._storage = ray_storage(config.gcs_storage, session)
        self._nodes: Any = None
        self._context: Any = None
        self._workers: list[tuple[Any, dict[str, Any]]] = []
        """Nodes beside the head, and how they were started."""
        self._lost_nodes: frozenset[str] = frozenset()
        """Nodes that Ray has given up, dead or frozen."""
        self._helpers = HelperTender()
        self._sweep_at = 0.0

    def start(self) -> None:
        """Start the nodes and connect this process.

        Raises: RuntimeError, OSError from Ray when a port is taken or a process does not come up.
        Effects: removes segments that a crashed start left behind; changes this process's environment, which Ray's
            processes inherit.
        """
        for path in remove_stale(SHARED_MEMORY, SEGMENT_PREFIX):
            logger.info("removed %s, left behind by a crash", path)
        silence_npu_probe()
        keep_agents()
        hide_command_line()
        self.session.set_environment(self._storage.environment)
        if len(self._config.nodes) == 1:
            self._start_one(self._config.nodes[0])
        else:
            self._start_many(self._config.nodes)

    @property
    def dashboard_url(self) -> str:
        """Where Ray's dashboard listens, for example `http://127.0.0.1:8265`."""
        return f"http://{self._context.dashboard_url}"

    def tend(self) -> str | None:
        """Start again what has died and nobody else starts again: the GCS, nodes other than the first, Ray's
        dashboard and monitors. Free the memory that dead replicas left.

        Returns: why the system cannot go on, or None. Call it twice a second, from the thread that called `start`: the
            kernel ends what a thread started when that thread ends.
        Raises: RuntimeError, OSError from Ray when something does not come up; to be tried again.
        """
        head = self._head()
        if dead(head, "raylet"):
            return "the first Ray node has died, and with it everything that ran on it"
        if dead(head, "gcs_server") or "gcs_server" not in head.all_processes:  # or it did not come up again
            if not self._storage.survives:
                return 'Ray\'s GCS has died; with [cluster] gcs_storage = "embedded" it would have been started again'
            logger.warning("Ray's GCS has died; starting it again, it knows what it knew")
            head.kill_gcs_server(check_alive=False)
            head.start_gcs_server()
        for index, (node, arguments) in enumerate(self._workers):
            if dead(node, "raylet") or node.node_id in self._lost_nodes:
                logger.warning("a Ray node has died or does not answer any more; ending what is left of it")
                if node in self._nodes.worker_nodes:
                    self._nodes.remove_node(node, allow_graceful=False)
                if self._config.restart_nodes:
                    self._workers[index] = (self._nodes.add_node(**arguments), arguments)
                else:
                    del self._workers[index]
                break  # one at a time: the others are looked at next time
        self._helpers.tend(head)
        self._sweep()
        return None

    def _sweep(self) -> None:
        """As the replicas do, since there may be none."""
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + SWEEP_PERIOD_S
        sweep(self.session.name)

    def stop(self, *, keep_logs: bool = False) -> None:
        """End Ray and remove what this start left on the machine. Safe to call twice, or after a failed start.

        Raises: what Ray raises when it cannot end a process; everything else is done nevertheless.
        """
        with contextlib.ExitStack() as last_first:
            last_first.callback(self._remove_traces, keep_logs=keep_logs)
            if self._nodes is not None:
                last_first.callback(self._nodes.shutdown)
                self._nodes = None
            if ray.is_initialized():
                last_first.callback(ray.shutdown)

    def _remove_traces(self, *, keep_logs: bool) -> None:
        for path in SHARED_MEMORY.glob(f"{SEGMENT_PREFIX}{self.session.name}-*"):
            path.unlink(missing_ok=True)
        faults_path(SHARED_MEMORY, self.session.name).unlink(missing_ok=True)  # of a tester that was killed
        self.session.remove_pool()
        if not keep_logs:
            self.session.remove()

    def _head(self) -> Any:
        """Ray's own record of the first node, which started its processes."""
        if self._nodes is not None:
            return self._nodes.head_node
        from ray._private import worker  # the only record of what `ray.init` has started

        return worker._global_node

    def _start_one(self, node: NodeConfig) -> None:
        options: dict[str, Any] = {f"_{name}": value for name, value in self._storage.arguments.items()}
        self._context = ray.init(
            address="local",
            num_cpus=_cpus(node),
            num_gpus=0,
            resources=node_resources(node.npus, node.ub_memory_mib),
            labels=node_labels(0),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=True,
            dashboard_host=self._config.dashboard_host,
            dashboard_port=self._config.dashboard_port or None,
            _temp_dir=str(self.session.ray_folder),
            _system_config=_system_config(self._health),
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )

    def _start_many(self, nodes: tuple[NodeConfig, ...]) -> None:
        from ray.cluster_utils import Cluster  # heavy, and only here

        hosts = first_hosts([node.npus for node in nodes])
        head = {
            **_node_arguments(nodes[0], hosts[0]),
            **self._storage.arguments,
            "include_dashboard": True,
            "dashboard_host": self._config.dashboard_host,
            "dashboard_port": self._config.dashboard_port or None,
            "temp_dir": str(self.session.ray_folder),
            "_system_config": _system_config(self._health),
        }
        self._nodes = Cluster(initialize_head=True, head_node_args=head)
        for node, host in zip(nodes[1:], hosts[1:], strict=True):
            arguments = _node_arguments(node, host)
            self._workers.append((self._nodes.add_node(**arguments), arguments))
        self._context = ray.init(address=self._nodes.address, log_to_driver=False, logging_level=logging.ERROR)
        # On a thread of its own: the question may hang as long as nobody answers, and nothing else should.
        threading.Thread(target=self._watch_nodes, name="nodes", daemon=True).start()

    def _watch_nodes(self) -> None:
        while ray.is_initialized():
            with contextlib.suppress(Exception):  # whatever Ray raises while it has no GCS, or while it ends
                self._lost_nodes = frozenset(node["NodeID"] for node in ray.nodes() if not node["Alive"])
            time.sleep(WATCH_PERIOD_S)


def _cpus(node: NodeConfig) -> int:
    return node.cpus or os.cpu_count() or 1


def _system_config(health: HealthConfig) -> dict[str, int]:
    """How Ray's GCS looks after nodes; Ray counts in milliseconds."""
    return {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": round(health.node_period_s * 1e3),
        "health_check_timeout_ms": round(health.node_timeout_s * 1e3),
        "health_check_failure_threshold": health.node_misses,
    }


def _node_arguments(node: NodeConfig, first_host: int) -> dict[str, Any]:
    return {
        "num_cpus": _cpus(node),
        "num_gpus": 0,
        "resources": node_resources(node.npus, node.ub_memory_mib),
        "labels": node_labels(first_host),
        "object_store_memory": OBJECT_STORE_BYTES,
    }
