"""The scalers that a configuration can name, at work in virtual time."""

import pytest

from serving.scaling.core.decision import ScaleKind
from serving.virtual.result import Outcome
from serving.virtual.scaling_loop import configured_scaler
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream, TraceRequest
from tests.cases.nightly import mostly_nightly
from tests.virtual.core.case import config

KINDS = {kind.value for kind in ScaleKind}


def wave() -> RequestStream:
    """Half a minute of low load, one of high load, four of low load."""
    made = []
    for start, end, rate in ((0.0, 30.0, 2.0), (30.0, 90.0, 25.0), (90.0, 330.0, 1.0)):
        made += [TraceRequest(start + n / rate, 8192, 32) for n in range(int((end - start) * rate))]
    return RequestStream("wave", made, count=len(made), duration_s=330.0)


@pytest.mark.parametrize(
    ("policy", "model_load"),
    mostly_nightly(
        [(policy, model_load) for policy in ("slo", "requests") for model_load in ("prewarmed", "pool")],
        [("slo", "pool"), ("requests", "prewarmed")],
        "tests/virtual/core/test_policies.py::test_instances_follow_the_load_and_nothing_is_lost",
    ),
)
def test_instances_follow_the_load_and_nothing_is_lost(policy: str, model_load: str) -> None:
    scaled = config(
        autoscaler={"policy": policy, "hold_s": 60.0, "max_prefill": 12, "requests_per_instance": 4.0},
        prefill={"replicas": 1},
        simulation={"model_load": model_load},
        kvcache={"replicas": 0},
        engine={"prefix_reuse": False},
    )
    result = simulate(scaled, wave(), check=True)
    assert set(result.requests.outcome) == {Outcome.FINISHED}
    sizes = [point.prefill_npus // 16 for point in result.timeline]
    assert sizes[0] == 1
    assert max(sizes) >= 3
    assert {change.kind for change in result.scaling} <= KINDS
    assert all(change.reason and change.before != change.target for change in result.scaling)
    assert all(point.prefill_npus + point.decode_npus + point.starting_npus <= 384 for point in result.timeline)
    if policy == "slo":  # the baseline waits ten minutes
        assert sizes[-1] < max(sizes)
        assert result.totals.npu_seconds < (16 * max(sizes) + 160) * result.totals.end_s


def test_no_policy_means_no_scaler_and_none_grows_a_pool_beyond_the_supernode() -> None:
    quiet = config()
    assert quiet.autoscaler.policy == "none"
    assert configured_scaler(quiet.slo, quiet.autoscaler) is None
    made = [TraceRequest(n / 50, 16_384, 8) for n in range(800)]
    load = RequestStream("too much", made, count=len(made), duration_s=16.0)
    result = simulate(config(autoscaler={"policy": "slo"}, simulation={"model_load": "prewarmed"}), load, check=True)
    assert max(point.prefill_npus + point.decode_npus for point in result.timeline) <= 384
    assert set(result.requests.outcome) == {Outcome.FINISHED}
