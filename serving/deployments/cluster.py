"""A local Ray cluster that presents virtual NPUs: one node, or several Ray nodes in this machine."""

import logging
import os
from typing import Any

import ray

from hardware.ray_resources import first_hosts, node_labels, node_resources, silence_npu_probe
from hardware.ub.file import remove_stale
from serving.config.cluster import ClusterConfig, NodeConfig
from serving.deployments.nodes import SEGMENT_PREFIX, SHARED_MEMORY
from serving.deployments.session import Session

logger = logging.getLogger(__name__)


OBJECT_STORE_BYTES = 256 << 20
"""Per node. Only handoffs between nodes pass through it, in chunks."""


class LocalCluster:
    """Starts Ray for one configuration and ends everything that it started.

    Effects: owns this session's UB segments and its folder.
    """

    def __init__(self, config: ClusterConfig, session: Session) -> None:
        self.session = session
        self._config = config
        self._nodes: Any = None
        self._context: Any = None

    def start(self) -> None:
        """Start the nodes and connect this process.

        Raises: RuntimeError, OSError from Ray when a port is taken or a process does not come up.
        Effects: removes segments that a crashed start left behind.
        """
        for path in remove_stale(SHARED_MEMORY, SEGMENT_PREFIX):
            logger.info("removed %s, left behind by a crash", path)
        silence_npu_probe()
        if len(self._config.nodes) == 1:
            self._start_one(self._config.nodes[0])
        else:
            self._start_many(self._config.nodes)

    @property
    def dashboard_url(self) -> str:
        """Where Ray's dashboard listens, for example `http://127.0.0.1:8265`."""
        return f"http://{self._context.dashboard_url}"

    def stop(self, *, keep_logs: bool = False) -> None:
        """End Ray and remove what this start left on the machine. Safe to call twice, or after a failed start."""
        if ray.is_initialized():
            ray.shutdown()
        if self._nodes is not None:
            self._nodes.shutdown()
            self._nodes = None
        for path in SHARED_MEMORY.glob(f"{SEGMENT_PREFIX}{self.session.name}-*"):
            path.unlink(missing_ok=True)
        self.session.remove_pool()
        if not keep_logs:
            self.session.remove()

    def _start_one(self, node: NodeConfig) -> None:
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
            log_to_driver=False,
            logging_level=logging.ERROR,
        )

    def _start_many(self, nodes: tuple[NodeConfig, ...]) -> None:
        from ray.cluster_utils import Cluster  # heavy, and only here

        hosts = first_hosts([node.npus for node in nodes])
        head = {
            **_node_arguments(nodes[0], hosts[0]),
            "include_dashboard": True,
            "dashboard_host": self._config.dashboard_host,
            "dashboard_port": self._config.dashboard_port or None,
            "temp_dir": str(self.session.ray_folder),
        }
        self._nodes = Cluster(initialize_head=True, head_node_args=head)
        for node, host in zip(nodes[1:], hosts[1:], strict=True):
            self._nodes.add_node(**_node_arguments(node, host))
        self._context = ray.init(address=self._nodes.address, log_to_driver=False, logging_level=logging.ERROR)


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
