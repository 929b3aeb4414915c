"""A virtual instance: weights over dies, and the KV capacity that follows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.device import KV_CACHE, WEIGHTS, WORKSPACE, VirtualInstance, VirtualNpu
from hardware.errors import HbmExhaustedError, HbmReservationError, SpecError
from hardware.spec import Plane
from hardware.spec.catalog import ASCEND_910C
from hardware.topology import NpuId
from hardware.units import MIB
from tests.fakes.clock import ManualClock


def make(npus: int = 2, hbm_bytes: int = 1000) -> VirtualInstance:
    spec = ASCEND_910C.with_hbm_per_die(hbm_bytes)
    return VirtualInstance("decode-0", [VirtualNpu(NpuId(0, index), spec, ManualClock()) for index in range(npus)])


def test_kv_blocks_get_what_weights_leave() -> None:
    instance = make()
    instance.reserve_spread(WEIGHTS, 402)
    shares = [ledger.used_bytes for npu in instance.npus for ledger in npu.ledgers.values()]
    assert shares == [101, 101, 100, 100]
    instance.reserve_per_die(WORKSPACE, 99)
    assert instance.kv_capacity_blocks(100) == 4 * 8  # the fullest die has 800 left
    assert instance.reserve_kv_cache(100) == instance.kv_blocks == 32
    assert instance.kv_capacity_blocks(100) == 0
    assert instance.used_bytes == 402 + 4 * 99 + 3200
    instance.check()


@given(
    npus=st.integers(1, 4),
    hbm=st.integers(1, 5000),
    weights=st.integers(0, 10_000),
    workspace=st.integers(0, 500),
    block=st.integers(1, 700),
)
def test_the_capacity_is_the_largest_that_fits(npus: int, hbm: int, weights: int, workspace: int, block: int) -> None:
    instance = make(npus, hbm)
    dies = 2 * npus
    try:
        instance.reserve_spread(WEIGHTS, weights)
        instance.reserve_per_die(WORKSPACE, workspace)
    except HbmExhaustedError:
        assert -(-weights // dies) + workspace > hbm
        instance.check()
        return
    fullest = hbm - workspace - -(-weights // dies)
    if fullest < block:
        with pytest.raises(HbmExhaustedError, match="less than one for each"):
            instance.reserve_kv_cache(block)
    else:
        blocks = instance.reserve_kv_cache(block)
        assert blocks % dies == 0
        assert blocks // dies * block <= fullest < (blocks // dies + 1) * block
    instance.check()
    for name in instance.snapshot()["reservations"]:
        instance.release(name)
    assert (instance.used_bytes, instance.kv_blocks) == (0, 0)
    instance.check()


def test_a_block_limit_is_rounded_down_per_die_and_the_cache_reserved_once() -> None:
    instance = make()
    assert instance.reserve_kv_cache(100, max_blocks=11) == 8
    assert instance.release(KV_CACHE) == 800
    assert instance.kv_blocks == 0
    with pytest.raises(HbmExhaustedError, match="3 KV blocks"):
        instance.reserve_kv_cache(100, max_blocks=3)
    instance = make()
    instance.reserve_kv_cache(100, max_blocks=4)
    with pytest.raises(HbmReservationError, match="release it first"):
        instance.reserve_kv_cache(100, max_blocks=4)


def test_all_dies_or_none() -> None:
    instance = make()
    last = list(instance.npus[-1].ledgers.values())[-1]
    last.reserve("other", 950)
    with pytest.raises(HbmExhaustedError):
        instance.reserve_per_die(WORKSPACE, 100)
    assert instance.used_bytes == 950
    last.reserve(WORKSPACE, 1)
    with pytest.raises(HbmReservationError):
        instance.reserve_per_die(WORKSPACE, 10)
    assert instance.used_bytes == 951
    with pytest.raises(HbmReservationError):
        make().reserve_spread(WEIGHTS, -1)
    instance = make()
    instance.kv_blocks = 4
    with pytest.raises(AssertionError, match="disagree"):
        instance.check()


def test_names_sizes_and_npus_that_cannot_be_are_refused() -> None:
    instance = make()
    with pytest.raises(HbmReservationError, match="nothing is reserved"):
        instance.release(WEIGHTS)
    for size in (0, -1):
        with pytest.raises(SpecError, match="above zero"):
            instance.kv_capacity_blocks(size)
        with pytest.raises(SpecError, match="above zero"):
            instance.reserve_kv_cache(size)
    clock, npu_id = ManualClock(), NpuId(0, 0)
    npu = VirtualNpu(npu_id, ASCEND_910C, clock)
    for npus in ([], [npu, VirtualNpu(npu_id, ASCEND_910C, clock)]):
        with pytest.raises(SpecError, match="each only once"):
            VirtualInstance("x", npus)
    with pytest.raises(SpecError, match="different dies"):
        VirtualInstance("x", [npu, VirtualNpu(NpuId(0, 1), ASCEND_910C.with_hbm_per_die(MIB), clock)])


def test_counters_are_shared_out_without_loss() -> None:
    instance = make(npus=3)
    instance.record_step(tokens=10, busy_s=0.5, predicted_s=0.25)
    instance.record_moved(Plane.RDMA, 8)
    assert [npu.counters.tokens for npu in instance.npus] == [4, 3, 3]
    assert [npu.counters.moved_bytes[Plane.RDMA] for npu in instance.npus] == [3, 3, 2]
    assert all((n.counters.steps, n.counters.busy_s, n.counters.predicted_s) == (1, 0.5, 0.25) for n in instance.npus)
    with pytest.raises(SpecError, match="tokens is -1"):
        instance.record_step(tokens=-1, busy_s=0.0)
    with pytest.raises(SpecError, match="nbytes is -1"):
        instance.record_moved(Plane.UB, -1)
    assert all(npu.counters.steps == 1 for npu in instance.npus)
    instance = make()
    instance.record_step(10, 0.5, 0.02)
    instance.record_step(10, 0.5, 0.03)
    assert instance.predicted_s == pytest.approx(0.05)


def test_a_snapshot_is_plain() -> None:
    instance = make(npus=1)
    instance.reserve_spread(WEIGHTS, 101)
    instance.reserve_kv_cache(100)
    state = json.loads(json.dumps(instance.snapshot()))
    assert (state["npu_count"], state["die_count"], state["kv_blocks"]) == (1, 2, 18)
    assert state["reservations"] == {"weights": 101, "kv_cache": 1800}
    assert (state["hbm_used_bytes"], state["hbm_capacity_bytes"]) == (1901, 2000)
    assert state["npus"][0]["id"] == "n0.npu0"
    assert instance.capacity_bytes == 2000


def test_a_cache_may_be_whole_on_every_die_or_on_each_group() -> None:
    instance = make()
    instance.reserve_spread(WEIGHTS, 402)
    assert instance.reserve_kv_cache(100, max_blocks=20, groups=1) == instance.kv_blocks == 8
    assert instance.used_bytes == 402 + 4 * 800
    instance.check()
    with pytest.raises(HbmReservationError, match="has its KV cache already"):
        instance.reserve_kv_cache(100, groups=1)
    instance.release(KV_CACHE)
    assert instance.reserve_kv_cache(100, max_blocks=3, groups=1) == 3
    instance.release(KV_CACHE)
    with pytest.raises(HbmExhaustedError, match="less than one for each of 1 groups of dies"):
        instance.reserve_kv_cache(1000, groups=1)
    with pytest.raises(SpecError):
        instance.reserve_kv_cache(0, groups=1)
    # Two groups of two dies: each die has whole blocks of its group, or half of each.
    instance = make()
    instance.reserve_spread(WEIGHTS, 402)
    assert instance.reserve_kv_cache(100, groups=2) == 2 * 8
    instance.release(KV_CACHE)
    assert instance.reserve_kv_cache(100, groups=2, parts=2) == 2 * 17
    assert instance.used_bytes == 402 + 4 * 17 * 50
    instance.check()
    instance.release(KV_CACHE)
    with pytest.raises(SpecError, match="4 dies cannot be 3 equal groups"):
        instance.reserve_kv_cache(100, groups=3)
