"""Descriptions: scaled copies and impossible numbers."""

import math
from dataclasses import FrozenInstanceError, replace

import pytest

from hardware.errors import SpecError
from hardware.spec.catalog import ASCEND_910C, ASCEND_910C_DIE, CLOUDMATRIX384, CLOUDMATRIX_NODE, RDMA_PLANE, UB_PLANE
from hardware.spec.plane import PathMeasure
from hardware.units import MIB, Bytes, Seconds


def test_scaled_memory_says_so_on_every_level() -> None:
    small = ASCEND_910C_DIE.with_hbm(128 * MIB)
    assert small.hbm_bytes == 128 * MIB
    assert small.name == "Ascend 910C die (scaled HBM)"
    assert small.with_hbm(64 * MIB).name == small.name
    assert replace(small, name=ASCEND_910C_DIE.name, hbm_bytes=ASCEND_910C_DIE.hbm_bytes) == ASCEND_910C_DIE
    assert ASCEND_910C_DIE.with_hbm(ASCEND_910C_DIE.hbm_bytes) is ASCEND_910C_DIE
    assert ASCEND_910C.with_hbm_per_die(ASCEND_910C_DIE.hbm_bytes) is ASCEND_910C
    for scaled in (
        ASCEND_910C.with_hbm_per_die(MIB),
        CLOUDMATRIX_NODE.with_hbm_per_die(MIB).npu,
        CLOUDMATRIX384.with_hbm_per_die(MIB).node.npu,
    ):
        assert scaled.die.hbm_bytes == MIB
        assert scaled.hbm_bytes == 2 * MIB
        assert scaled.name == "Ascend 910C (scaled HBM)"


@pytest.mark.parametrize("hbm_bytes", [0, -1])
def test_a_die_without_memory_is_refused(hbm_bytes: int) -> None:
    for spec in (ASCEND_910C, CLOUDMATRIX_NODE, CLOUDMATRIX384):
        with pytest.raises(SpecError, match="hbm_bytes"):
            spec.with_hbm_per_die(hbm_bytes)
    with pytest.raises(SpecError, match="hbm_bytes"):
        ASCEND_910C_DIE.with_hbm(hbm_bytes)


def test_every_level_refuses_impossible_numbers() -> None:
    with pytest.raises(SpecError, match=r"DieSpec\.int8_ops_per_s"):
        replace(ASCEND_910C_DIE, int8_ops_per_s=math.inf)
    with pytest.raises(SpecError, match=r"NpuSpec\.dies"):
        replace(ASCEND_910C, dies=0)
    with pytest.raises(SpecError, match=r"NodeSpec\.cpus"):
        replace(CLOUDMATRIX_NODE, cpus=-4)
    with pytest.raises(SpecError, match=r"NodeSpec\.dram_bytes"):
        replace(CLOUDMATRIX_NODE, dram_bytes=Bytes(0))
    with pytest.raises(SpecError, match=r"SupernodeSpec\.nodes"):
        replace(CLOUDMATRIX384, nodes=0)
    with pytest.raises(SpecError, match=r"PathMeasure\.latency_s"):
        PathMeasure(1e9, Seconds(math.nan))
    assert RDMA_PLANE.cpu_bytes_per_s == 0
    with pytest.raises(SpecError, match=r"PlaneSpec\.npu_bytes_per_s"):
        replace(UB_PLANE, npu_bytes_per_s=-1.0)
    with pytest.raises(FrozenInstanceError):
        ASCEND_910C_DIE.cube_cores = 25  # type: ignore[misc]
