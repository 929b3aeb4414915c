"""Busy instances: by work done while requests arrive, not by running steps or over the final drain."""

import dataclasses

import pytest

from hardware.faults import Fault, FaultKind
from hardware.units import Seconds
from serving.config.serve import ServeConfig
from serving.virtual.report.pools import PoolSummary, pool_summaries
from serving.virtual.result import SimResult
from serving.virtual.shards import Plan, simulate_supernodes
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream, TraceRequest
from tests.virtual.core.case import config


def load(rate_per_s: float, seconds: float, prompt: int, output: int) -> RequestStream:
    requests = [TraceRequest(number / rate_per_s, prompt, output) for number in range(int(rate_per_s * seconds))]
    return RequestStream("steady", requests, len(requests), seconds)


def pools(result: SimResult) -> tuple[PoolSummary, PoolSummary]:
    prefill, decode = pool_summaries(result)
    return prefill, decode


def small() -> ServeConfig:
    return config(prefill={"replicas": 1}, decode={"replicas": 1})


def test_a_pool_is_as_busy_as_its_work_and_not_as_its_steps() -> None:
    _, decode = pools(simulate(small(), load(2.0, 30.0, 512, 2000)))
    assert decode.running_share > 0.95
    assert decode.busy_share < 0.1
    # One prefill instance gets several times its capacity; outputs continue long after the last arrival.
    result = simulate(small(), load(60.0, 20.0, 6000, 1000))
    prefill, _ = pools(result)
    assert result.totals.load_s == pytest.approx(20.0, abs=0.1)
    assert result.totals.end_s > 2 * result.totals.load_s
    assert 0.9 < prefill.busy_share <= prefill.running_share <= 1.0


def test_work_grows_with_the_load_until_a_batch_is_full() -> None:
    shares = [pools(simulate(small(), load(rate, 20.0, 4096, 8)))[0].busy_share for rate in (3.0, 6.0, 12.0)]
    assert shares[1] == pytest.approx(2 * shares[0], rel=0.1)
    assert shares[2] == pytest.approx(4 * shares[0], rel=0.1)
    assert shares[2] < 0.9
    usual = small()
    strict = dataclasses.replace(usual, slo=dataclasses.replace(usual.slo, tpot_s=0.02))
    shares = [pools(simulate(one, load(30.0, 20.0, 512, 1000)))[1].busy_share for one in (usual, strict)]
    assert shares[0] < shares[1] <= 1.0


def test_where_all_requests_come_at_once_the_whole_run_counts() -> None:
    burst = RequestStream("burst", [TraceRequest(0.0, 6000, 200)] * 50, 50, 0.0)
    result = simulate(small(), burst)
    assert result.totals.load_s == result.totals.end_s
    assert all(0 < pool.busy_share <= pool.running_share <= 1 for pool in pools(result))


def test_an_instance_that_was_lost_counts_as_long_as_it_was_there() -> None:
    lost = Fault(Seconds(5.0), FaultKind.NODE, "n0", Seconds(1000.0), 0.0)
    steady = load(8.0, 20.0, 4096, 8)
    late = TraceRequest(100.0, 4096, 8)
    result = simulate(small(), RequestStream("late", [*steady.requests, late], 161, 100.0), faults=(lost,))
    first, second = (one for one in result.instances if one.pool == "prefill")
    assert first.load_s == 5.0
    assert second.load_s == pytest.approx(100.0 - 5.0 - 83.1, abs=0.01)
    assert 0 < first.work_s <= first.load_busy_s <= 5.0
    assert second.work_s < 0.01 < second.busy_s


@pytest.mark.nightly("tests/virtual/core/test_work_done.py::test_a_pool_is_as_busy_as_its_work_and_not_as_its_steps")
def test_supernodes_together_are_as_busy_as_one() -> None:
    one = simulate(small(), load(6.0, 20.0, 4096, 8))
    plan = Plan(
        dataclasses.replace(small(), simulation=dataclasses.replace(small().simulation, supernodes=2)),
        lambda number, count: load(6.0, 20.0, 4096, 8),
    )
    both = simulate_supernodes(plan, "two", processes=1)
    assert both.totals.load_s == one.totals.load_s
    assert pools(both)[0].busy_share == pytest.approx(pools(one)[0].busy_share)
