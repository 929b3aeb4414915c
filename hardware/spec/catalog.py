"""Every published CloudMatrix384 hardware number, with its source, and the descriptions built from them.

"V2" is version 2 of the paper (arXiv 2506.12708v2), whose table numbers are used: version 3 dropped the network table
the absolute memory and link rates. "V1" figures were read in notes on version 1. "MSM" is Huawei's performance
model (Ascend/msmodeling, tensor_cast/device.py, Atlas A3 die). Bandwidths are one direction and decimal, as printed.
HBM capacity is binary, because the stacks are. Where the paper and another source differ, the paper wins.
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hardware.errors import SpecError
from hardware.spec.plane import PathMeasure, Plane, PlaneMember, PlaneSpec, Reach, UbMeasures
from hardware.spec.supernode import DieSpec, NodeSpec, NpuSpec, SupernodeSpec
from hardware.units import GIB, GIGA, TERA, TIB, Bytes, Seconds, gbps_to_bytes_per_s

# A number with where it comes from and how far to trust it.


class Confidence(StrEnum):
    """How far a published number can be trusted."""

    PAPER = "paper"
    """Stated in the CloudMatrix384 paper (version 2 unless the source names another)."""
    DERIVED = "derived"
    """Arithmetic on stated numbers; the source shows it."""
    SECONDARY = "secondary"
    """Stated in another publication."""
    UNVERIFIED = "unverified"
    """Not stated plainly in any available source; treat it as a parameter."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the catalogue.

    Attributes:
        value: the number, in `unit`.
        unit: "1" for a count, else "B", "B/s", "s", "flop/s", "op/s", "W".
        source: section or table of the paper, or another reference.
        confidence: how far to trust it.
        note: what a reader must know before using it.
    """

    value: float
    unit: str
    source: str
    confidence: Confidence = Confidence.PAPER
    note: str = ""

    @property
    def whole(self) -> int:
        """The value as an integer.

        Raises: SpecError if it is not one.
        """
        if self.value != int(self.value):
            raise SpecError(f"{self.value} {self.unit} ({self.source}) is not a whole number; use .value")
        return int(self.value)


# Every published CloudMatrix384 hardware number, with its source, and the descriptions built from them.

_D, _S, _U = Confidence.DERIVED, Confidence.SECONDARY, Confidence.UNVERIFIED

# --- one die ------------------------------------------------------------------------------------------------
DIE_CUBE_CORES = Figure(24, "1", "V2 3.3.1")
DIE_VECTOR_CORES = Figure(48, "1", "V2 3.3.1")
DIE_FP16 = Figure(376 * TERA, "flop/s", "V1 hardware section, for BF16 too; MSM has it for FP16", _S, "not in V2")
DIE_BF16 = Figure(353.9 * TERA, "flop/s", "MSM, for BF16", _S, "V1 prints FP16's peak for both")
DIE_INT8 = Figure(752 * TERA, "op/s", "V2 Table 10: its GB/s column follows from this peak exactly; MSM agrees", _D)
DIE_VECTOR = Figure(11 * TERA, "flop/s", "MSM: FP32 on the vector cores; 22e12 in FP16 and BF16", _S)
DIE_HBM = Figure(64 * GIB, "B", "V2 3.3.1, Fig 3 (4 stacks of 16 GB); MSM 64 GiB")
DIE_HBM_RATE = Figure(1.6 * TERA, "B/s", "V2 3.3.1, Fig 3", note="MSM has 1.6 TiB/s")
DIE_ON_PACKAGE_RATE = Figure(270 * GIGA, "B/s", "V2 3.3.1, Fig 3", note="540 GB/s both ways")
DIE_UB_LINKS = Figure(7, "1", "V2 3.3.1, Fig 2-4")
DIE_UB_LINK_RATE = Figure(gbps_to_bytes_per_s(224), "B/s", "V2 3.3.1: 224 Gbps a link")
DIE_UB_RATE = Figure(196 * GIGA, "B/s", "V2 3.3.1, Fig 2-4: 7 links of 224 Gbps")
DIE_RDMA_RATE = Figure(gbps_to_bytes_per_s(200), "B/s", "V2 3.3.1: 200 Gbps RoCE")

# --- one NPU: two dies --------------------------------------------------------------------------------------
NPU_DIES = Figure(2, "1", "V2 3.3.1")
NPU_HBM = Figure(128 * GIB, "B", "V2 3.3.1, Fig 3 (8 stacks of 16 GB)")
NPU_HBM_RATE = Figure(3.2 * TERA, "B/s", "V2 3.3.1, Fig 3")
NPU_FP16 = Figure(752 * TERA, "flop/s", "V1 hardware section", _S, "not in V2; the press has 780 to 800")
NPU_BF16 = Figure(707.8 * TERA, "flop/s", "two dies of 353.9 TFLOPS", _D, "the press has 780 to 800")
NPU_INT8 = Figure(1504 * TERA, "op/s", "V2 Tables 3-4: tokens/s divided by tokens/s per TFLOPS is 1,503 to 1,506", _D)
NPU_UB_RATE = Figure(392 * GIGA, "B/s", "V2 3.3.1, Fig 2-4")
NPU_RDMA_RATE = Figure(gbps_to_bytes_per_s(400), "B/s", "V2 3.2, 3.3.1: 400 Gbps")

# --- one node -----------------------------------------------------------------------------------------------
NODE_NPUS = Figure(8, "1", "V2 3.3.2, Fig 4")
NODE_CPUS = Figure(4, "1", "V2 3.3.2, Fig 4", note="Kunpeng sockets, full-mesh NUMA")
NODE_L1_SWITCHES = Figure(7, "1", "V2 3.3.2, Fig 4", note="one per UB sub-plane")
NODE_L1_UPLINKS = Figure(16, "1", "V2 3.3.2, Fig 5")
NODE_L1_LINK_RATE = Figure(28 * GIGA, "B/s", "V2 3.3.2, Fig 5")
NODE_L1_UPLINK_RATE = Figure(448 * GIGA, "B/s", "V2 3.3.2, Fig 5")
NODE_UB_UPLINK_RATE = Figure(3136 * GIGA, "B/s", "7 x 448 GB/s = 8 x 392 GB/s: not oversubscribed", _D)
NODE_CPU_UB_RATE = Figure(160 * GIGA, "B/s", "V2 3.3.2", note="printed as approximate")
NODE_RDMA_RATE = Figure(gbps_to_bytes_per_s(3200), "B/s", "V2 3.3.2: 8 x 400 Gbps")
NODE_VPC_RATE = Figure(gbps_to_bytes_per_s(400), "B/s", "V2 3.2, 3.3.2: one Qingtian card", note="up to")
DIE_VPC_RATE = Figure(NODE_VPC_RATE.value / 16, "B/s", "V2 3.2: 400 Gbps per node, 16 dies", _D)
NODE_DRAM = Figure(1.5 * TIB, "B", "notes on ElasticMoE, which counts nodes otherwise", _U, "the paper has no figure")

# --- one supernode ------------------------------------------------------------------------------------------
SUPERNODE_NODES = Figure(48, "1", "V2 3.2, 3.3.3")
SUPERNODE_NPUS = Figure(384, "1", "V2 3.2, 3.3.3")
SUPERNODE_DIES = Figure(768, "1", "384 NPUs of 2 dies", _D)
SUPERNODE_CPUS = Figure(192, "1", "V2 3.2, 3.3.3")
SUPERNODE_RACKS = Figure(16, "1", "V2 3.3.3", note="12 with nodes, 4 with switches")
SUPERNODE_HBM = Figure(384 * 128 * GIB, "B", "V2 3.5.2: 49.2 TB = 384 x 128 GB")
SUPERNODE_HBM_RATE = Figure(384 * 3.2 * TERA, "B/s", "384 x 3.2 TB/s = 1,229 TB/s", _D)
SUPERNODE_FP16 = Figure(384 * 752 * TERA, "flop/s", "384 x 752 TFLOPS = 289 PFLOPS; the press has about 300", _D)
SUPERNODE_BF16 = Figure(384 * 707.8 * TERA, "flop/s", "384 x 707.8 TFLOPS = 272 PFLOPS", _D)
SUPERNODE_INT8 = Figure(384 * 1504 * TERA, "op/s", "384 x 1,504 TOPS = 578 POPS", _D)
SUPERNODE_UB_INJECTION = Figure(384 * 392 * GIGA, "B/s", "384 x 392 GB/s = 150.5 TB/s", _D)
SUPERNODE_POWER = Figure(559_000, "W", "SemiAnalysis, 16 Apr 2025", _S)
SUPERNODE_OPTICS = Figure(6_912, "1", "SemiAnalysis, 16 Apr 2025: 5,376 scale-up and 1,536 scale-out", _S)
RDMA_REACH_NPUS = Figure(165_000, "1", "V2 Fig 2, Fig 7", note="up to")

# --- UB switch fabric ---------------------------------------------------------------------------------------
UB_SUBPLANES = Figure(7, "1", "V2 3.3.3, Fig 5")
UB_L2_PER_SUBPLANE = Figure(16, "1", "V2 3.3.3, Fig 5")
UB_L2_PORTS = Figure(48, "1", "V2 3.3.3, Fig 5")
UB_L1_CHIPS = Figure(336, "1", "48 nodes x 7", _D)
UB_L2_CHIPS = Figure(112, "1", "7 sub-planes x 16", _D)
UB_L1_L2_LINKS = Figure(5_376, "1", "48 x 7 x 16; every L2 port is used", _D)

# --- measured on UB: per die, one direction, latency of 512 B -----------------------------------------------
_T1 = "V2 Table 1"
UB_NPU_NPU_READ_INTRA_RATE = Figure(167 * GIGA, "B/s", _T1)
UB_NPU_NPU_READ_INTER_RATE = Figure(164 * GIGA, "B/s", _T1)
UB_NPU_NPU_WRITE_INTRA_RATE = Figure(137 * GIGA, "B/s", _T1)
UB_NPU_NPU_WRITE_INTER_RATE = Figure(135 * GIGA, "B/s", _T1)
UB_NPU_CPU_READ_INTRA_RATE = Figure(151 * GIGA, "B/s", _T1)
UB_NPU_CPU_READ_INTER_RATE = Figure(147 * GIGA, "B/s", _T1)
UB_NPU_CPU_WRITE_INTRA_RATE = Figure(110 * GIGA, "B/s", _T1)
UB_NPU_CPU_WRITE_INTER_RATE = Figure(107 * GIGA, "B/s", _T1)
UB_NPU_NPU_READ_INTRA_LATENCY = Figure(1.2e-6, "s", _T1)
UB_NPU_NPU_READ_INTER_LATENCY = Figure(1.9e-6, "s", _T1)
UB_NPU_NPU_WRITE_INTRA_LATENCY = Figure(1.3e-6, "s", _T1)
UB_NPU_NPU_WRITE_INTER_LATENCY = Figure(2.1e-6, "s", _T1)
UB_NPU_CPU_READ_INTRA_LATENCY = Figure(1.0e-6, "s", _T1)
UB_NPU_CPU_READ_INTER_LATENCY = Figure(1.7e-6, "s", _T1)
UB_NPU_CPU_WRITE_INTRA_LATENCY = Figure(1.1e-6, "s", _T1)
UB_NPU_CPU_WRITE_INTER_LATENCY = Figure(1.9e-6, "s", _T1)


def _measure(rate: Figure, latency: Figure) -> PathMeasure:
    return PathMeasure(bytes_per_s=rate.value, latency_s=Seconds(latency.value))


ASCEND_910C_DIE = DieSpec(
    name="Ascend 910C die",
    cube_cores=DIE_CUBE_CORES.whole,
    vector_cores=DIE_VECTOR_CORES.whole,
    bf16_flops_per_s=DIE_BF16.value,
    int8_ops_per_s=DIE_INT8.value,
    hbm_bytes=Bytes(DIE_HBM.whole),
    hbm_bytes_per_s=DIE_HBM_RATE.value,
    on_package_bytes_per_s=DIE_ON_PACKAGE_RATE.value,
    ub_links=DIE_UB_LINKS.whole,
    ub_bytes_per_s=DIE_UB_RATE.value,
    rdma_bytes_per_s=DIE_RDMA_RATE.value,
)

ASCEND_910C = NpuSpec(name="Ascend 910C", die=ASCEND_910C_DIE, dies=NPU_DIES.whole)

CLOUDMATRIX_NODE = NodeSpec(
    npu=ASCEND_910C,
    npus=NODE_NPUS.whole,
    cpus=NODE_CPUS.whole,
    l1_switches=NODE_L1_SWITCHES.whole,
    l1_uplinks=NODE_L1_UPLINKS.whole,
    l1_link_bytes_per_s=NODE_L1_LINK_RATE.value,
    cpu_ub_bytes_per_s=NODE_CPU_UB_RATE.value,
    vpc_bytes_per_s=NODE_VPC_RATE.value,
    dram_bytes=Bytes(NODE_DRAM.whole),
)

UB_PLANE = PlaneSpec(
    Plane.UB, frozenset({PlaneMember.NPU, PlaneMember.CPU}), Reach.SUPERNODE, NPU_UB_RATE.value, NODE_CPU_UB_RATE.value
)
RDMA_PLANE = PlaneSpec(Plane.RDMA, frozenset({PlaneMember.NPU}), Reach.DATACENTRE, NPU_RDMA_RATE.value, 0.0)
VPC_PLANE = PlaneSpec(Plane.VPC, frozenset({PlaneMember.CPU}), Reach.DATACENTRE, 0.0, NODE_VPC_RATE.value)

UB_MEASURES = UbMeasures(
    npu_npu_read_intra=_measure(UB_NPU_NPU_READ_INTRA_RATE, UB_NPU_NPU_READ_INTRA_LATENCY),
    npu_npu_read_inter=_measure(UB_NPU_NPU_READ_INTER_RATE, UB_NPU_NPU_READ_INTER_LATENCY),
    npu_npu_write_intra=_measure(UB_NPU_NPU_WRITE_INTRA_RATE, UB_NPU_NPU_WRITE_INTRA_LATENCY),
    npu_npu_write_inter=_measure(UB_NPU_NPU_WRITE_INTER_RATE, UB_NPU_NPU_WRITE_INTER_LATENCY),
    npu_cpu_read_intra=_measure(UB_NPU_CPU_READ_INTRA_RATE, UB_NPU_CPU_READ_INTRA_LATENCY),
    npu_cpu_read_inter=_measure(UB_NPU_CPU_READ_INTER_RATE, UB_NPU_CPU_READ_INTER_LATENCY),
    npu_cpu_write_intra=_measure(UB_NPU_CPU_WRITE_INTRA_RATE, UB_NPU_CPU_WRITE_INTRA_LATENCY),
    npu_cpu_write_inter=_measure(UB_NPU_CPU_WRITE_INTER_RATE, UB_NPU_CPU_WRITE_INTER_LATENCY),
)

CLOUDMATRIX384 = SupernodeSpec(
    name="CloudMatrix384",
    node=CLOUDMATRIX_NODE,
    nodes=SUPERNODE_NODES.whole,
    l2_switches_per_subplane=UB_L2_PER_SUBPLANE.whole,
    l2_ports=UB_L2_PORTS.whole,
    planes=MappingProxyType({Plane.UB: UB_PLANE, Plane.RDMA: RDMA_PLANE, Plane.VPC: VPC_PLANE}),
    ub_measures=UB_MEASURES,
)


def figures() -> dict[str, Figure]:
    """Every figure of this catalogue by its name, in the order of the file."""
    return {name: value for name, value in globals().items() if isinstance(value, Figure)}
