"""Ramps and steps: counts follow the cumulative rate, and mapped back they are the process they were made from."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import Ramp, RampShape, Steady, Steps, stream
from loadgen.errors import UsageError
from tests.loadgen.arrivals.statistics import draw, exponential_cdf, ks_distance, ks_limit

RAMPS = [
    Ramp(2.0, 20.0, 60.0),
    Ramp(20.0, 2.0, 60.0),
    Ramp(1.0, 32.0, 50.0, RampShape.EXPONENTIAL),
    Ramp(32.0, 1.0, 50.0, RampShape.EXPONENTIAL),
    Ramp(4.0, 4.0, 10.0),
    Ramp(4.0, 4.0, 10.0, RampShape.EXPONENTIAL),
]


def rate_at(ramp: Ramp, t: float) -> float:
    """The rate by its definition."""
    share = min(1.0, t / ramp.duration_s)
    if ramp.shape is RampShape.LINEAR:
        return ramp.from_per_s + (ramp.to_per_s - ramp.from_per_s) * share
    return ramp.from_per_s * (ramp.to_per_s / ramp.from_per_s) ** share


@pytest.mark.parametrize("ramp", RAMPS)
def test_expected_is_the_integral_of_the_rate(ramp: Ramp) -> None:
    grid = np.linspace(0, 1.5 * ramp.duration_s, 30_001)
    rates = np.array([rate_at(ramp, t) for t in grid])
    assert ramp.expected(grid[-1]) == pytest.approx(np.trapezoid(rates, grid), rel=1e-6)


@pytest.mark.parametrize("ramp", RAMPS)
def test_the_kth_request_of_a_smooth_ramp_comes_when_k_are_expected(ramp: Ramp) -> None:
    smooth = Ramp(ramp.from_per_s, ramp.to_per_s, ramp.duration_s, ramp.shape, math.inf)
    times = draw(smooth, stream(0), until_s=1.5 * ramp.duration_s)
    assert len(times) == math.ceil(ramp.expected(1.5 * ramp.duration_s) - 1e-9)
    assert [ramp.expected(t) for t in times] == pytest.approx(range(len(times)), abs=1e-6)


@pytest.mark.parametrize("ramp", RAMPS)
def test_a_random_ramp_is_poisson_in_operational_time(ramp: Ramp) -> None:
    times = draw(ramp, stream(11), count=5000)
    gaps = np.diff([ramp.expected(t) for t in times], prepend=0.0)
    assert ks_distance(gaps, exponential_cdf(1.0)) < ks_limit(len(gaps))


def test_a_ramp_up_has_few_requests_at_first() -> None:
    counts = np.zeros(2)
    for seed in range(50):
        times = draw(Ramp(1.0, 9.0, 40.0), stream(seed), until_s=40.0)
        counts += [np.sum(times < 20), np.sum(times >= 20)]
    # Mean rates of the halves: 3 and 7 per second.
    assert counts / 50 / 20 == pytest.approx([3.0, 7.0], rel=0.05)


@pytest.mark.parametrize("shape", list(RampShape))
def test_over_count_lasts_as_long_as_that_many_requests_take(shape: RampShape) -> None:
    ramp = Ramp.over_count(2.0, 8.0, 100, shape)
    assert ramp.expected(ramp.duration_s) == pytest.approx(100)
    ends = [draw(ramp, stream(seed), count=100)[-1] for seed in range(200)]
    assert np.mean(ends) == pytest.approx(ramp.duration_s, rel=0.02)


@given(
    st.floats(0.01, 1e3),
    st.floats(0.01, 1e3),
    st.floats(0.1, 1e4),
    st.sampled_from(list(RampShape)),
    st.sampled_from([0.3, 1.0, math.inf]),
)
def test_ramp_times_ascend_and_are_finite(
    first: float, last: float, duration: float, shape: RampShape, shape_k: float
) -> None:
    times = draw(Ramp(first, last, duration, shape, shape_k), stream(4), count=1500)
    assert np.all(np.isfinite(times))
    assert times[0] >= 0
    assert np.all(np.diff(times) >= 0)


@pytest.mark.parametrize("wrong", [(0.0, 1.0, 1.0), (1.0, math.inf, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, math.inf)])
def test_a_ramp_needs_rates_and_a_duration(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="ramp"):
        Ramp(*wrong)


def test_a_ramp_needs_burstiness_and_a_count_above_zero() -> None:
    with pytest.raises(UsageError, match="burstiness"):
        Ramp(1.0, 2.0, 3.0, burstiness=0.0)
    with pytest.raises(UsageError, match="duration"):
        Ramp.over_count(1.0, 2.0, 0)


def test_smooth_steps_hold_their_rates_and_then_end() -> None:
    times = draw(Steps(((10.0, 1.0), (0.0, 5.0), (2.0, 2.0)), math.inf), stream(0), until_s=1e9)
    assert times == pytest.approx([*(index / 10 for index in range(10)), 6.0, 6.5, 7.0, 7.5])


def test_random_steps_have_the_mean_counts_of_each_step() -> None:
    steps = Steps(((5.0, 20.0), (20.0, 10.0), (1.0, 30.0)))
    assert steps.duration_s == 60.0
    edges = [0.0, 20.0, 30.0, 60.0]
    counts = np.mean([np.histogram(draw(steps, stream(s), until_s=1e9), edges)[0] for s in range(100)], axis=0)
    assert counts == pytest.approx([100.0, 200.0, 30.0], rel=0.07)


def test_one_step_is_a_steady_rate_cut_off() -> None:
    steady = draw(Steady(7.0), stream(6), until_s=400.0)
    assert draw(Steps(((7.0, 400.0),)), stream(6), until_s=1e9) == pytest.approx(steady)


@pytest.mark.parametrize("steps", [((-1.0, 1.0),), ((1.0, 0.0),), ((math.inf, 1.0),), ((0.0, 5.0),), ()])
def test_steps_must_be_possible(steps: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(UsageError, match="rate"):
        Steps(steps)


def test_steps_need_burstiness_above_zero() -> None:
    with pytest.raises(UsageError, match="burstiness"):
        Steps(((1.0, 1.0),), -2.0)
