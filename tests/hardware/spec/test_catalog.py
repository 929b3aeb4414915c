"""The catalogue: pinned rows of the paper, and the sums that hold between them."""

import re

import pytest

from hardware.errors import SpecError
from hardware.spec import Plane, PlaneMember, Reach, catalog
from hardware.spec.catalog import (
    ASCEND_910C,
    ASCEND_910C_DIE,
    CLOUDMATRIX384,
    CLOUDMATRIX_NODE,
    UB_MEASURES,
    Confidence,
    Figure,
)
from hardware.units import GIB


def test_every_figure_has_a_source_and_a_unit() -> None:
    figures = catalog.figures()
    assert len(figures) > 60
    for name, figure in figures.items():
        assert figure.source, name
        assert figure.unit in {"1", "B", "B/s", "s", "flop/s", "op/s", "W"}, name
        assert figure.value > 0, name
    for name, figure in catalog.figures().items():
        if figure.confidence is Confidence.PAPER:
            assert re.match(r"V2 (\d\.\d|Table \d|Fig \d)", figure.source), name
    assert catalog.NODE_DRAM.confidence is Confidence.UNVERIFIED
    assert catalog.DIE_BF16.confidence is Confidence.SECONDARY
    assert catalog.DIE_INT8.confidence is Confidence.DERIVED
    assert catalog.SUPERNODE_NPUS.whole == 384
    with pytest.raises(SpecError, match="not a whole number"):
        _ = Figure(1.5, "1", "nowhere").whole


def test_npu_node_and_supernode_add_up() -> None:
    die, npu = ASCEND_910C_DIE, ASCEND_910C
    assert npu.hbm_bytes == catalog.NPU_HBM.whole == 128 * GIB
    assert npu.int8_ops_per_s == catalog.NPU_INT8.value == 1504e12
    assert npu.bf16_flops_per_s == catalog.NPU_BF16.value == 2 * 353.9e12
    assert 2 * catalog.DIE_FP16.value == catalog.NPU_FP16.value == 752e12
    assert npu.ub_bytes_per_s == catalog.NPU_UB_RATE.value == 392e9
    assert npu.rdma_bytes_per_s == catalog.NPU_RDMA_RATE.value == 50e9
    assert 2 * die.hbm_bytes_per_s == catalog.NPU_HBM_RATE.value
    assert (die.cube_cores, die.vector_cores) == (24, 48)
    assert die.ub_links * catalog.DIE_UB_LINK_RATE.value == die.ub_bytes_per_s
    node = CLOUDMATRIX_NODE
    assert (node.npus, node.dies, node.cpus, node.l1_switches) == (8, 16, 4, 7)
    assert node.l1_uplinks * node.l1_link_bytes_per_s == catalog.NODE_L1_UPLINK_RATE.value
    assert node.npus * node.npu.ub_bytes_per_s == catalog.NODE_UB_UPLINK_RATE.value
    assert node.rdma_bytes_per_s == catalog.NODE_RDMA_RATE.value
    supernode = CLOUDMATRIX384
    assert supernode.npus == catalog.SUPERNODE_NPUS.whole
    assert supernode.dies == catalog.SUPERNODE_DIES.whole
    assert supernode.cpus == catalog.SUPERNODE_CPUS.whole
    assert supernode.hbm_bytes == catalog.SUPERNODE_HBM.whole
    assert supernode.l1_switches == catalog.UB_L1_CHIPS.whole
    links = supernode.l1_switches * supernode.node.l1_uplinks
    assert links == catalog.UB_L1_L2_LINKS.whole == catalog.UB_L2_CHIPS.whole * supernode.l2_ports


def test_planes_have_the_published_members_and_rates() -> None:
    planes = CLOUDMATRIX384.planes
    assert planes[Plane.UB].members == {PlaneMember.NPU, PlaneMember.CPU}
    assert planes[Plane.RDMA].members == {PlaneMember.NPU}
    assert planes[Plane.VPC].members == {PlaneMember.CPU}
    assert planes[Plane.UB].reach is Reach.SUPERNODE
    assert (planes[Plane.UB].npu_bytes_per_s, planes[Plane.UB].cpu_bytes_per_s) == (392e9, 160e9)
    assert (planes[Plane.RDMA].npu_bytes_per_s, planes[Plane.RDMA].cpu_bytes_per_s) == (50e9, 0)
    assert (planes[Plane.VPC].npu_bytes_per_s, planes[Plane.VPC].cpu_bytes_per_s) == (0, 50e9)


def test_ub_measures_are_table_1_and_support_what_the_paper_claims() -> None:
    rows = [
        (UB_MEASURES.npu_npu_read_intra, 167, 1.2),
        (UB_MEASURES.npu_npu_read_inter, 164, 1.9),
        (UB_MEASURES.npu_npu_write_intra, 137, 1.3),
        (UB_MEASURES.npu_npu_write_inter, 135, 2.1),
        (UB_MEASURES.npu_cpu_read_intra, 151, 1.0),
        (UB_MEASURES.npu_cpu_read_inter, 147, 1.7),
        (UB_MEASURES.npu_cpu_write_intra, 110, 1.1),
        (UB_MEASURES.npu_cpu_write_inter, 107, 1.9),
    ]
    for measure, gigabytes_per_s, microseconds in rows:
        assert measure.bytes_per_s == gigabytes_per_s * 1e9
        assert measure.latency_s == pytest.approx(microseconds * 1e-6)
    for pair in ("npu_npu_read", "npu_npu_write", "npu_cpu_read", "npu_cpu_write"):
        intra, inter = getattr(UB_MEASURES, f"{pair}_intra"), getattr(UB_MEASURES, f"{pair}_inter")
        assert 0.97 <= inter.bytes_per_s / intra.bytes_per_s < 1
        assert 0 < inter.latency_s - intra.latency_s < 1e-6
        assert intra.bytes_per_s < ASCEND_910C_DIE.ub_bytes_per_s
