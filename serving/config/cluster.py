"""The machines and their virtual hardware."""

from dataclasses import dataclass
from typing import Literal

from hardware.spec.catalog import CLOUDMATRIX384, CLOUDMATRIX_NODE
from hardware.units import MIB, Bytes
from serving.config.key import key
from serving.config.ports import PortRange

DIES_PER_NPU = CLOUDMATRIX_NODE.npu.dies


LogForm = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`[[cluster.nodes]]`: one Ray node that presents virtual NPUs and UB memory."""

    name: str = key("what to call it; empty = `node-0`, `node-1` ...", default="")
    npus: int = key(
        "virtual NPUs, as Ray resource `NPU`; more than 8 stand for several hosts",
        default=CLOUDMATRIX_NODE.npus,
        low=1,
        high=CLOUDMATRIX384.npus,
    )
    ub_memory_mib: int = key(
        "UB memory [MiB]: real shared memory, of which each replica takes its part; Ray resource `UB_MEMORY`",
        default=1024,
        low=1,
    )
    cpus: int = key("CPUs offered to Ray; 0 = the machine's cores", default=0, low=0)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """`[cluster]`"""

    dashboard_host: str = key("address of Ray's dashboard", default="127.0.0.1", low=1)
    dashboard_port: int = key("port of Ray's dashboard; 0 = any free one", default=8265, low=0, high=65535)
    gcs_storage: str = key(
        "where Ray's control plane keeps its state: `embedded` = on disk beside the logs, so that a GCS that died is "
        "started again and knows everything; `redis://host:port` = in a Redis; `memory` = nowhere: when the GCS dies, "
        "the system ends",
        default="embedded",
        low=1,
        secret=True,
    )
    port_range: str = key(
        "ports for everything of ours that listens beside the gateway's HTTP port (links, memory servers, segments, "
        "gateways among each other), as `30000-30100`; empty = any free ones",
        default="",
    )
    log_format: LogForm = key(
        "form of our log lines: `text`, in Serve's logs; or `json`, one object a line with time, host, pid and "
        "request, in Ray's `worker-*.err` of each process",
        default="text",
    )
    ray_metrics: bool = key(
        "show the series that Ray's board for Serve LLM asks for, as `ray_vllm_*` on Ray's own metrics ports",
        default=False,
    )
    restart_nodes: bool = key("start a local Ray node anew that has died (not the first one)", default=True)
    nodes: tuple[NodeConfig, ...] = key(
        "the Ray nodes, started in this machine", default=(NodeConfig(name="node-0"),), low=1
    )

    def __post_init__(self) -> None:
        """Raises: ConfigError for an invalid range."""
        PortRange.parse(self.port_range)

    @property
    def ports(self) -> PortRange:
        """`port_range`, parsed."""
        return PortRange.parse(self.port_range)

    @property
    def npus(self) -> int:
        """NPUs of all nodes."""
        return sum(node.npus for node in self.nodes)


@dataclass(frozen=True, slots=True)
class HardwareConfig:
    """`[hardware]`: how far the virtual NPUs are scaled down."""

    hbm_per_die_mib: int = key("memory of one virtual die [MiB]; 0 = the real 910C's 64 GiB (65536)", default=64, low=0)
    workspace_share: float = key("share of HBM kept for activations", default=0.1, low=0.0, high=0.9)

    @property
    def hbm_per_die_bytes(self) -> Bytes:
        """Memory of one virtual die."""
        if self.hbm_per_die_mib == 0:
            return CLOUDMATRIX_NODE.npu.die.hbm_bytes
        return Bytes(self.hbm_per_die_mib * MIB)
