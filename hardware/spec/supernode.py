"""One supernode: the nodes that share a UB fabric."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware.spec.plane import Plane, PlaneSpec, UbMeasures, require_positive
from hardware.units import Bytes

# One die: the smallest unit that computes, and one rank of a parallel group.

_SCALED = " (scaled HBM)"


@dataclass(frozen=True, slots=True)
class DieSpec:
    """Capabilities of one die. Rates are peaks per second; links are one direction.

    Attributes:
        name: what to call it on a status page.
        cube_cores: matrix cores (AIC).
        vector_cores: element-wise cores (AIV).
        bf16_flops_per_s: dense BF16 or FP16 peak.
        int8_ops_per_s: dense INT8 peak.
        hbm_bytes: capacity of the die's memory.
        hbm_bytes_per_s: peak memory bandwidth.
        on_package_bytes_per_s: link to the other die of the same NPU.
        ub_links: UB transceivers, one into each UB sub-plane.
        ub_bytes_per_s: UB line rate of all links together.
        rdma_bytes_per_s: RoCE line rate.
    """

    name: str
    cube_cores: int
    vector_cores: int
    bf16_flops_per_s: float
    int8_ops_per_s: float
    hbm_bytes: Bytes
    hbm_bytes_per_s: float
    on_package_bytes_per_s: float
    ub_links: int
    ub_bytes_per_s: float
    rdma_bytes_per_s: float

    def __post_init__(self) -> None:
        require_positive(self)

    def with_hbm(self, hbm_bytes: int) -> "DieSpec":
        """The same die with another memory size: a scaled-down virtual die that fits a laptop.

        Args:
            hbm_bytes: bytes of the die's ledger.
        Returns: a copy with a name that marks the memory size as scaled.
        Raises: SpecError if the size is not above zero.
        """
        if hbm_bytes == self.hbm_bytes:
            return self
        return replace(self, name=scaled_name(self.name), hbm_bytes=Bytes(hbm_bytes))


def scaled_name(name: str) -> str:
    """A name that marks the memory size as scaled."""
    return name if name.endswith(_SCALED) else name + _SCALED


# One NPU: the package that is bought, scheduled and given to an instance as a whole.


@dataclass(frozen=True, slots=True)
class NpuSpec:
    """A package of equal dies. Throughput is published per NPU, ranks are dies."""

    name: str
    die: DieSpec
    dies: int

    def __post_init__(self) -> None:
        require_positive(self)

    @property
    def hbm_bytes(self) -> Bytes:
        """Memory of all dies together."""
        return Bytes(self.dies * self.die.hbm_bytes)

    @property
    def bf16_flops_per_s(self) -> float:
        """Dense BF16 peak of all dies together."""
        return self.dies * self.die.bf16_flops_per_s

    @property
    def int8_ops_per_s(self) -> float:
        """Dense INT8 peak of all dies together."""
        return self.dies * self.die.int8_ops_per_s

    @property
    def ub_bytes_per_s(self) -> float:
        """UB line rate, one direction."""
        return self.dies * self.die.ub_bytes_per_s

    @property
    def rdma_bytes_per_s(self) -> float:
        """RDMA line rate, one direction."""
        return self.dies * self.die.rdma_bytes_per_s

    def with_hbm_per_die(self, hbm_bytes: int) -> "NpuSpec":
        """The same NPU with another memory size per die (see `DieSpec.with_hbm`).

        Raises: SpecError if the size is not above zero.
        """
        if hbm_bytes == self.die.hbm_bytes:
            return self
        return replace(self, name=scaled_name(self.name), die=self.die.with_hbm(hbm_bytes))


# One node: a host with its NPUs, CPU sockets and on-board UB switches.


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Parts of one host. Links are one direction.

    Attributes:
        npu: the package, the same everywhere.
        npus: packages in the node.
        cpus: CPU sockets.
        l1_switches: on-board UB switch chips; each belongs to one UB sub-plane.
        l1_uplinks: links from one L1 chip to the second tier.
        l1_link_bytes_per_s: rate of one of them.
        cpu_ub_bytes_per_s: UB rate of one CPU socket.
        vpc_bytes_per_s: rate of the node's one datacentre network card.
        dram_bytes: host memory of the node.
    """

    npu: NpuSpec
    npus: int
    cpus: int
    l1_switches: int
    l1_uplinks: int
    l1_link_bytes_per_s: float
    cpu_ub_bytes_per_s: float
    vpc_bytes_per_s: float
    dram_bytes: Bytes

    def __post_init__(self) -> None:
        require_positive(self)

    @property
    def dies(self) -> int:
        """Dies in the node."""
        return self.npus * self.npu.dies

    @property
    def rdma_bytes_per_s(self) -> float:
        """RDMA rate of the whole node."""
        return self.npus * self.npu.rdma_bytes_per_s

    def with_hbm_per_die(self, hbm_bytes: int) -> "NodeSpec":
        """The same node with another memory size per die (see `DieSpec.with_hbm`).

        Raises: SpecError if the size is not above zero.
        """
        return replace(self, npu=self.npu.with_hbm_per_die(hbm_bytes))


# One supernode: the nodes that share a UB fabric.


@dataclass(frozen=True, slots=True)
class SupernodeSpec:
    """Nodes, the second switch tier, and the three planes.

    Attributes:
        name: what to call it on a status page.
        node: the host, the same everywhere.
        nodes: hosts on the fabric.
        l2_switches_per_subplane: second-tier chips in each UB sub-plane.
        l2_ports: ports of one of them.
        planes: the three networks.
        ub_measures: measured UB bandwidth and latency.
    """

    name: str
    node: NodeSpec
    nodes: int
    l2_switches_per_subplane: int
    l2_ports: int
    planes: Mapping[Plane, PlaneSpec]
    ub_measures: UbMeasures

    def __post_init__(self) -> None:
        require_positive(self)

    @property
    def npus(self) -> int:
        """NPUs on the fabric."""
        return self.nodes * self.node.npus

    @property
    def dies(self) -> int:
        """Dies on the fabric."""
        return self.nodes * self.node.dies

    @property
    def cpus(self) -> int:
        """CPU sockets on the fabric."""
        return self.nodes * self.node.cpus

    @property
    def l1_switches(self) -> int:
        """First-tier switch chips, all nodes."""
        return self.nodes * self.node.l1_switches

    @property
    def hbm_bytes(self) -> Bytes:
        """NPU memory on the fabric."""
        return Bytes(self.npus * self.node.npu.hbm_bytes)

    def with_hbm_per_die(self, hbm_bytes: int) -> "SupernodeSpec":
        """The same supernode with another memory size per die (see `DieSpec.with_hbm`).

        Raises: SpecError if the size is not above zero.
        """
        return replace(self, node=self.node.with_hbm_per_die(hbm_bytes))
