"""One supernode: the nodes that share a UB fabric."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hardware.spec._check import require_positive
from hardware.spec.node import NodeSpec
from hardware.spec.plane import Plane, PlaneSpec, UbMeasures
from hardware.units import Bytes


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
