"""A virtual NPU: ledgers of its dies and counters."""

import json

import pytest

from hardware.device import VirtualNpu
from hardware.errors import HbmExhaustedError, SpecError
from hardware.spec import Plane
from hardware.spec.catalog import ASCEND_910C
from hardware.topology import DieId, NpuId
from hardware.units import GIB, MIB
from tests.fakes.clock import ManualClock


def test_a_real_one_has_two_dies_on_one_of_which_a_reservation_has_to_fit() -> None:
    npu = VirtualNpu(NpuId(0, 3), ASCEND_910C, ManualClock())
    assert npu.dies == (DieId(NpuId(0, 3), 0), DieId(NpuId(0, 3), 1))
    assert npu.free_bytes == 128 * GIB
    assert npu.used_bytes == 0
    npu = VirtualNpu(NpuId(0, 0), ASCEND_910C.with_hbm_per_die(MIB), ManualClock())
    first = npu.ledgers[npu.dies[0]]
    with pytest.raises(HbmExhaustedError, match=r"n0\.npu0\.die0"):
        first.reserve("weights", MIB + 1)
    first.reserve("weights", MIB)
    assert (npu.used_bytes, npu.free_bytes) == (MIB, MIB)
    npu.check()


def test_counters_add_up_and_refuse_negative_counts() -> None:
    clock = ManualClock(10.0)
    npu = VirtualNpu(NpuId(0, 0), ASCEND_910C, clock)
    npu.record_step(tokens=5, busy_s=0.5, predicted_s=0.001)
    npu.record_step(tokens=0, busy_s=0.25)
    npu.record_moved(Plane.UB, 100)
    npu.record_moved(Plane.UB, 1)
    npu.record_moved(Plane.RDMA, 7)
    clock.seconds = 13.0
    state = npu.snapshot()
    assert (state["steps"], state["tokens"], state["busy_s"], state["predicted_s"]) == (2, 5, 0.75, 0.001)
    assert state["moved_bytes"] == {"ub": 101, "rdma": 7, "vpc": 0}
    assert state["up_s"] == 3.0
    npu = VirtualNpu(NpuId(0, 0), ASCEND_910C, ManualClock())
    for step in ((-1, 0.0, 0.0), (1, -0.1, 0.0), (1, 0.1, -1.0)):
        with pytest.raises(SpecError, match="cannot be negative"):
            npu.record_step(*step)
    with pytest.raises(SpecError, match="nbytes is -1"):
        npu.record_moved(Plane.VPC, -1)
    assert npu.counters.steps == 0


def test_a_snapshot_is_plain_and_tells_the_scaled_size() -> None:
    npu = VirtualNpu(NpuId(2, 1), ASCEND_910C.with_hbm_per_die(128 * MIB), ManualClock())
    npu.ledgers[npu.dies[1]].reserve("kv_cache", 3)
    state = json.loads(json.dumps(npu.snapshot()))
    assert state["id"] == "n2.npu1"
    assert state["model"] == "Ascend 910C (scaled HBM)"
    assert [die["hbm_used_bytes"] for die in state["dies"]] == [0, 3]
    assert state["dies"][1]["reservations"] == {"kv_cache": 3}
    assert state["dies"][1]["hbm_high_water_bytes"] == 3
    assert state["dies"][0]["hbm_capacity_bytes"] == 128 * MIB
