"""Queries to every host of a Ray cluster, each by a short task on that host."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hardware.ray_resources import NPU, UB_MEMORY
from serving.cluster.gcs_store import GcsStore
from serving.cluster.model_parcels import publish_model
from serving.cluster.nodes import ON_HEAD_NODE
from serving.config.checks import check_nodes
from serving.config.cluster import NodeConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError

ANSWER_S = 60.0
"""Response timeout; the first task on a host starts a process there, which takes seconds on a busy machine."""
_HEAD = next(iter(ON_HEAD_NODE))
_NOT_THERE = ("ModuleNotFoundError", "ImportError")


@dataclass(frozen=True, slots=True, order=True)
class Host:
    """A node of a cluster, from Ray's list."""

    name: str
    address: str
    node: str
    npus: int
    ub_memory_mib: int
    head: bool

    def __str__(self) -> str:
        return self.name if self.name == self.address else f"{self.name} ({self.address})"


@dataclass(frozen=True, slots=True)
class Answers:
    """Responses of hosts, and a one-line reason for each missing one."""

    given: dict[Host, Any]
    silent: dict[Host, str]


def living_hosts() -> list[Host]:
    """Hosts of the cluster that are alive according to Ray, by name. Raises: Ray's errors."""
    return sorted(
        Host(
            node["NodeManagerHostname"],
            node["NodeManagerAddress"],
            node["NodeID"],
            int(node["Resources"].get(NPU, 0)),
            int(node["Resources"].get(UB_MEMORY, 0)),
            _HEAD in node["Resources"],
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def on_nodes(config: ServeConfig, hosts: list[Host]) -> ServeConfig:
    """The configuration with the cluster's nodes instead of the file's.

    Raises: ConfigError if they cannot hold the initial replicas; not if Ray may add nodes.
    """
    nodes = tuple(
        NodeConfig(host.name, host.npus, host.ub_memory_mib) for host in hosts if host.npus or host.ub_memory_mib
    )
    if config.autoscaler.nodes == "ray":
        return replace(config, cluster=replace(config.cluster, nodes=nodes))
    if not nodes:
        raise ConfigError(
            "no host of this Ray offers NPUs or UB memory: start it with --resources "
            '\'{"NPU": 8, "UB_MEMORY": 1024}\' (UB memory in MiB), or set [autoscaler] nodes = "ray" if Ray adds hosts'
        )
    config = replace(config, cluster=replace(config.cluster, nodes=nodes))
    check_nodes(config)
    return config


def may_have_more(config: ServeConfig, hosts: list[Host]) -> bool:
    """Whether parts of the system may run on other hosts than this one, now or later."""
    return len(hosts) > 1 or config.autoscaler.nodes == "ray"


def publish_if_needed(store: GcsStore, config: ServeConfig, hosts: list[Host]) -> None:
    """Store the model's small files for hosts that may not have them. Raises, Effects: as `publish_model`."""
    if may_have_more(config, hosts):
        publish_model(store, config.model)


def ask_hosts(question: Callable[..., Any], *arguments: Any, deadline_s: float = ANSWER_S) -> Answers:
    """Call a function on every live host concurrently.

    Args:
        question: a function of this package, which hosts find by its name.
    Raises: Ray's errors if it does not list its nodes.
    """
    task: Any = ray.remote(num_cpus=0, max_retries=0)(question)
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(host.node, soft=False)).remote(*arguments): host
        for host in living_hosts()
    }
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=deadline_s) if asked else ([], [])
    answers = Answers({}, {asked[ref]: f"did not respond within {deadline_s:.0f} s" for ref in late})
    for ref in late:
        ray.cancel(ref, force=True)
    for ref in done:
        try:
            answers.given[asked[ref]] = ray.get(ref)
        except Exception as error:  # any error of the task, wrapped by Ray
            answers.silent[asked[ref]] = reason_of(error)
    return answers


def reason_of(error: Exception) -> str:
    """Message about a host's failed call."""
    text = str(error)
    if any(sign in text for sign in _NOT_THERE) and "serving" in text:
        return "has no cloudmatrix-infer, or another version, in the Python that Ray runs: install it there"
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
