"""The autoscaler on a small fluid model: constant load, a day, a burst, no load."""

import pytest

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.autoscaler import make_scaler
from tests.scaling.core.fluid import Fluid, FluidPool, burst, day, flat

CONFIG = AutoscalerConfig(policy="slo", max_prefill=50, max_decode=50)


def run(fluid: Fluid, hours: float, policy: str = "slo", period_s: float = 1.0) -> Fluid:
    fluid.run(make_scaler("slo" if policy == "slo" else "requests", SloConfig(), CONFIG), hours * 3600, period_s)
    return fluid


@pytest.mark.timeout(240)
def test_flat_load_is_left_alone() -> None:
    """Poisson arrivals of prompts of exponential length: at most one change an hour once the sizes are found."""
    late = 0
    for seed, rate in enumerate((3.0, 14.0)):
        fluid = Fluid(flat(rate), seed, start_s=10.0 * (1 + seed), output=(400.0, 3000.0)[seed % 2])
        run(fluid, 2.0, period_s=4.0)
        late += sum(at > 3600.0 for at, _ in fluid.changes)
        assert fluid.attainment > 0.98, seed
    assert late <= 2 * 1.0


@pytest.mark.timeout(240)
def test_a_day_is_followed() -> None:
    """SLO attainment as with a static split for the peak, at a much lower cost."""
    rate = day(2.0, 30.0, 2.0)
    static = Fluid(rate, 1)
    static.prefill, static.decode = FluidPool("prefill", 5, 4), FluidPool("decode", 7, 8)
    static.run(None, 2 * 3600, 4.0)
    scaled = run(Fluid(rate, 1), 2.0, period_s=4.0)
    assert static.attainment > 0.99
    assert scaled.attainment > 0.99
    assert scaled.npu_s < 0.7 * static.npu_s
    baseline = run(Fluid(rate, 1), 2.0, "requests", period_s=4.0)
    assert scaled.npu_s < 0.6 * baseline.npu_s
    assert len(scaled.changes) < len(baseline.changes)


def test_a_burst_is_answered_within_a_start() -> None:
    fluid = run(Fluid(burst(5.0, 40.0, 1200.0, 300.0), start_s=5.0), 0.5)
    up = [at for at, change in fluid.changes if change.pool == "prefill" and change.target >= 5]
    assert up[0] <= 1203.0
    assert fluid.prefill.target <= 3
    assert fluid.ttft_met / (fluid.ttft_met + fluid.ttft_missed) > 0.97


def test_without_load_pools_go_to_their_least_or_to_zero() -> None:
    fluid = run(Fluid(lambda t: 10.0 if t < 600 else 0.0), 0.5)
    assert (fluid.prefill.target, fluid.decode.target) == (1, 1)
    zero = Fluid(lambda t: 10.0 if t < 600 or t >= 3000 else 0.0)
    zero.prefill.low = zero.decode.low = 0
    run(zero, 2900 / 3600)
    assert (zero.prefill.target, zero.decode.target) == (0, 0)
    run_on = make_scaler("slo", SloConfig(), CONFIG)
    zero.run(run_on, 3060.0)
    woken = [at for at, change in zero.changes if change.before == 0]
    assert len(woken) == 2
    assert all(3000.0 <= at <= 3002.0 for at in woken)
    assert zero.prefill.running >= 1
    assert zero.decode.running >= 1
