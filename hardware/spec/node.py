"""One node: a host with its NPUs, CPU sockets and on-board UB switches."""

from dataclasses import dataclass, replace

from hardware.spec._check import require_positive
from hardware.spec.npu import NpuSpec
from hardware.units import Bytes


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
