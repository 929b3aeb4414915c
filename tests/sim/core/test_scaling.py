"""Pools that follow their load in virtual time, and lose nothing when they shrink."""

import math

import pytest

from hardware.cost import CostModel, load_device
from serving.sim.core.run import simulate
from serving.sim.core.scaling import start_up_s
from serving.sim.result import Outcome
from serving.sim.workload.request import TraceRequest, Workload
from tests.sim.core.case import config


def wave() -> Workload:
    """A minute of little, two of much, four of little again."""
    rates = [(0.0, 60.0, 2.0), (60.0, 180.0, 40.0), (180.0, 420.0, 1.0)]
    made = []
    for start, end, rate in rates:
        made += [TraceRequest(start + n / rate, 8192, 64) for n in range(int((end - start) * rate))]
    return Workload("wave", made, count=len(made), duration_s=420.0)


@pytest.mark.parametrize("model_load", ["prewarmed", "pool"])
def test_instances_follow_the_load_and_nothing_is_lost(model_load: str) -> None:
    scaled = config(
        autoscaler={"policy": "track", "hold_s": 60.0, "max_prefill": 12},
        prefill={"replicas": 1},
        simulation={"model_load": model_load},
    )
    result = simulate(scaled, wave(), check=True)
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    sizes = [point.prefill_npus // 16 for point in result.timeline]
    assert sizes[0] == 1
    assert max(sizes) >= 4
    assert sizes[-1] == 1
    assert result.decision_counts["scale"] >= 2
    assert all("instances at 70%" in one.reason for one in result.decisions if one.kind == "scale")
    left = [one for one in result.instances if math.isfinite(one.stopped_s)]
    assert len(left) >= 3
    fixed = simulate(config(prefill={"replicas": 12}, autoscaler={"policy": "none"}), wave())
    assert result.totals.npu_seconds < fixed.totals.npu_seconds


def test_an_instance_starts_after_its_weights_have_come() -> None:
    cost = CostModel(load_device("ascend-910c"))
    assert start_up_s(cost, "prewarmed") == 0.0
    assert start_up_s(cost, "pool") == pytest.approx(35.0, abs=1.0)
    assert start_up_s(cost, "storage") == pytest.approx(350.0, abs=10.0)


def test_a_pool_does_not_grow_beyond_the_supernode() -> None:
    made = [TraceRequest(n / 100, 16_384, 16) for n in range(2000)]
    load = Workload("too much", made, count=len(made), duration_s=20.0)
    scaled = config(autoscaler={"policy": "track"}, simulation={"model_load": "prewarmed"})
    result = simulate(scaled, load, check=True)
    assert max(point.prefill_npus + point.decode_npus for point in result.timeline) <= 384
    assert set(result.requests.outcome) == {Outcome.FINISHED}
