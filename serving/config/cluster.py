"""The machines and their virtual hardware."""

from dataclasses import dataclass
from typing import Literal

from hardware.spec.catalog import CLOUDMATRIX384, CLOUDMATRIX_NODE
from hardware.units import MIB, Bytes
from serving.config.key import key
from serving.config.upgrade_rules import AUTOSCALER, BEFORE_RAY_STARTS, ENGINES, GATEWAY, KVCACHE, restarts, upgrades
from serving.errors import ConfigError

# A range of ports, as in `[cluster] port_range`.

PORT_RANGE_KEY = "[cluster] port_range"


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports from `first` to `last`, both included; (0, 0) = any free port."""

    first: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str) -> "PortRange":
        """Parse `"30000-30100"`, one port, or an empty text.

        Raises: ConfigError for any other text.
        """
        if not text:
            return cls()
        first, dash, last = text.partition("-")
        if not (first.strip().isdecimal() and (last if dash else first).strip().isdecimal()):
            raise ConfigError(f'{PORT_RANGE_KEY} = "{text}" is not a range of ports: write for example "30000-30100"')
        found = cls(int(first), int(last or first))
        if not 1024 <= found.first <= found.last <= 65535:
            raise ConfigError(f'{PORT_RANGE_KEY} = "{text}": ports must be from 1024 to 65535, the lower one first')
        return found


ANY_PORT = PortRange()


# The machines and their virtual hardware.

DIES_PER_NPU = CLOUDMATRIX_NODE.npu.dies


LogForm = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`[[cluster.nodes]]`: one Ray node that presents virtual NPUs and UB memory."""

    UPGRADE = upgrades(BEFORE_RAY_STARTS)
    LIVE_ONLY = "cpus"

    name: str = key("name of the node; empty = `node-0`, `node-1` ...", default="")
    npus: int = key(
        "virtual NPUs, as Ray resource `NPU`; more than 8 represent several hosts",
        default=CLOUDMATRIX_NODE.npus,
        low=1,
        high=CLOUDMATRIX384.npus,
    )
    ub_memory_mib: int = key(
        "UB memory [MiB]: real shared memory, divided among the replicas; Ray resource `UB_MEMORY`",
        default=1024,
        low=1,
    )
    cpus: int = key("CPUs offered to Ray; 0 = all cores of the machine", default=0, low=0)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """`[cluster]`"""

    UPGRADE = upgrades(
        BEFORE_RAY_STARTS,
        (restarts(GATEWAY, *ENGINES, KVCACHE), "port_range"),
        (restarts(GATEWAY, *ENGINES, KVCACHE, AUTOSCALER), "log_format"),
        (restarts(GATEWAY, *ENGINES), "ray_metrics"),
    )
    LIVE_ONLY = "dashboard_host dashboard_port gcs_storage port_range log_format ray_metrics restart_nodes"

    dashboard_host: str = key("address of Ray's dashboard", default="127.0.0.1", low=1)
    dashboard_port: int = key("port of Ray's dashboard; 0 = any free one", default=8265, low=0, high=65535)
    gcs_storage: str = key(
        "where Ray's control plane (GCS) stores its state: `embedded` = on disk next to the logs, so that a "
        "restarted GCS recovers it; `redis://host:port` = in Redis; `memory` = not at all: if the GCS dies, the "
        "system ends",
        default="embedded",
        low=1,
        secret=True,
    )
    port_range: str = key(
        "ports for all our listeners other than the gateway's HTTP port (links, memory servers, segments, gateway to "
        "gateway), e.g. `30000-30100`; empty = any free ones",
        default="",
    )
    log_format: LogForm = key(
        "format of our log lines: `text`, in Serve's logs; or `json`, one object per line with time, host, pid and "
        "request, in Ray's `worker-*.err` of each process",
        default="text",
    )
    ray_metrics: bool = key(
        "export the series that Ray's Serve LLM dashboard queries, as `ray_vllm_*` on Ray's own metrics ports",
        default=False,
    )
    restart_nodes: bool = key("restart a local Ray node that has died (except the first)", default=True)
    nodes: tuple[NodeConfig, ...] = key(
        "the Ray nodes to start on this machine", default=(NodeConfig(name="node-0"),), low=1
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

    UPGRADE = upgrades(restarts(*ENGINES), (restarts(*ENGINES, KVCACHE), "reserve_memory"))
    LIVE_ONLY = "workspace_share reserve_memory"

    hbm_per_die_mib: int = key("memory of one virtual die [MiB]; 0 = the real 910C's 64 GiB (65536)", default=64, low=0)
    workspace_share: float = key("share of HBM kept for activations", default=0.1, low=0.0, high=0.9)
    reserve_memory: bool = key(
        "allocate the UB memory of KV blocks at the start, so that a machine that has too little refuses the start; "
        "`false` = as it is used",
        default=False,
    )

    @property
    def hbm_per_die_bytes(self) -> Bytes:
        """Memory of one virtual die."""
        if self.hbm_per_die_mib == 0:
            return CLOUDMATRIX_NODE.npu.die.hbm_bytes
        return Bytes(self.hbm_per_die_mib * MIB)
