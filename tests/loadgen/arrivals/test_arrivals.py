"""Arrivals against their exact distributions: constant, Poisson, gamma, ramps, steps and replays; and their streams."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import Ramp, RampShape, ReplayedArrivals, Steady, Steps, each, stream
from loadgen.arrivals.process import BLOCK
from loadgen.errors import UsageError
from tests.loadgen.arrivals.statistics import draw, exponential_cdf, ks_distance, ks_limit, variation

MANY = 20_000


def test_constant_and_infinite_rates() -> None:
    times = draw(Steady(4.0, math.inf), stream(1), count=MANY)
    assert times.tolist() == [index / 4 for index in range(MANY)]
    assert draw(Steady(math.inf), stream(0), count=3000).tolist() == [0.0] * 3000


def test_poisson_has_exponential_gaps_from_the_start_on() -> None:
    times = draw(Steady(5.0), stream(7, "arrivals"), count=MANY)
    gaps = np.diff(times, prepend=0.0)
    assert ks_distance(gaps, exponential_cdf(5.0)) < ks_limit(MANY)
    assert np.mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.03
    # The test can fail: the same gaps are not those of a rate 5 % away.
    assert ks_distance(gaps, exponential_cdf(5.25)) > ks_limit(MANY)


def test_poisson_counts_in_windows_vary_as_much_as_their_mean() -> None:
    """vLLM rescales its gaps so that N requests take N / rate exactly; then counts would vary less."""
    ends = [draw(Steady(10.0), stream(seed), count=100)[-1] for seed in range(400)]
    assert np.mean(ends) == pytest.approx(10.0, rel=0.03)
    assert np.std(ends) == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 2.0, 9.0])
def test_gamma_gaps_have_the_mean_and_variation_asked_for(burstiness: float) -> None:
    gaps = np.diff(draw(Steady(8.0, burstiness), stream(3), count=MANY), prepend=0.0)
    assert np.mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert variation(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_gamma_of_shape_two_is_the_sum_of_two_exponentials() -> None:
    gaps = np.diff(draw(Steady(3.0, 2.0), stream(5), count=MANY), prepend=0.0)
    assert ks_distance(gaps, lambda x: 1 - np.exp(-6 * x) * (1 + 6 * x)) < ks_limit(MANY)


def test_times_ascend_over_blocks_and_do_not_depend_on_how_many_are_taken() -> None:
    times = draw(Steady(100.0), stream(2), count=3 * BLOCK + 5)
    assert np.all(np.diff(times) > 0)
    assert draw(Steady(100.0), stream(2), count=10).tolist() == times[:10].tolist()
    one_by_one = each(Steady(100.0), stream(2))
    assert [next(one_by_one) for _ in range(BLOCK + 3)] == times[: BLOCK + 3].tolist()


def test_streams_are_repeatable_and_independent() -> None:
    assert stream(1, "a", 2).random(4).tolist() == stream(1, "a", 2).random(4).tolist()
    others = [stream(1), stream(1, "a"), stream(1, "a", "2"), stream(1, "a", 3), stream(2, "a", 2), stream(1, 2, "a")]
    firsts = {generator.random() for generator in others} | {stream(1, "a", 2).random()}
    assert len(firsts) == len(others) + 1
    draws = np.array([stream(9, "arrivals", index).standard_normal(4000) for index in range(12)])
    correlations = np.corrcoef(draws)[np.triu_indices(12, 1)]
    assert np.max(np.abs(correlations)) < 0.06


def test_another_process_draws_the_same() -> None:
    code = "from loadgen.arrivals import stream; print(stream(5, 'workload', 1).integers(2**63))"
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True
    )
    assert int(other.stdout) == stream(5, "workload", 1).integers(2**63)


@given(st.floats(0, 1e9))
def test_by_default_a_time_is_itself(time: float) -> None:
    assert ReplayedArrivals().due_s(time) == time


def test_the_window_is_cut_out_and_scaled() -> None:
    replay = ReplayedArrivals(rate_scale=4.0, from_s=10.0, to_s=20.0)
    assert [replay.due_s(t) for t in (9.9, 10.0, 12.0, 19.0, 20.0)] == [None, 0.0, 0.5, 2.25, None]
    assert not replay.is_over(19.9)
    assert replay.is_over(20.0)


RAMPS = [
    Ramp(2.0, 20.0, 60.0), Ramp(20.0, 2.0, 60.0), Ramp(1.0, 32.0, 50.0, RampShape.EXPONENTIAL),
    Ramp(32.0, 1.0, 50.0, RampShape.EXPONENTIAL), Ramp(4.0, 4.0, 10.0), Ramp(4.0, 4.0, 10.0, RampShape.EXPONENTIAL),
]  # fmt: skip


def rate_at(ramp: Ramp, t: float) -> float:
    """The rate by its definition."""
    share = min(1.0, t / ramp.duration_s)
    if ramp.shape is RampShape.LINEAR:
        return ramp.from_per_s + (ramp.to_per_s - ramp.from_per_s) * share
    return ramp.from_per_s * (ramp.to_per_s / ramp.from_per_s) ** share


@pytest.mark.parametrize("ramp", RAMPS)
def test_a_ramp_follows_its_rate(ramp: Ramp) -> None:
    """Expectation = integral of the rate; smooth ones keep to it; random ones are Poisson in operational time."""
    grid = np.linspace(0, 1.5 * ramp.duration_s, 30_001)
    rates = np.array([rate_at(ramp, t) for t in grid])
    assert ramp.expected(grid[-1]) == pytest.approx(np.trapezoid(rates, grid), rel=1e-6)
    smooth = Ramp(ramp.from_per_s, ramp.to_per_s, ramp.duration_s, ramp.shape, math.inf)
    times = draw(smooth, stream(0), until_s=1.5 * ramp.duration_s)
    assert len(times) == math.ceil(ramp.expected(1.5 * ramp.duration_s) - 1e-9)
    assert [ramp.expected(t) for t in times] == pytest.approx(range(len(times)), abs=1e-6)
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


def test_steps_hold_their_rates() -> None:
    times = draw(Steps(((10.0, 1.0), (0.0, 5.0), (2.0, 2.0)), math.inf), stream(0), until_s=1e9)
    assert times == pytest.approx([*(index / 10 for index in range(10)), 6.0, 6.5, 7.0, 7.5])
    steady = draw(Steady(7.0), stream(6), until_s=400.0)
    assert draw(Steps(((7.0, 400.0),)), stream(6), until_s=1e9) == pytest.approx(steady)

    steps = Steps(((5.0, 20.0), (20.0, 10.0), (1.0, 30.0)))
    assert steps.duration_s == 60.0
    edges = [0.0, 20.0, 30.0, 60.0]
    counts = np.mean([np.histogram(draw(steps, stream(s), until_s=1e9), edges)[0] for s in range(100)], axis=0)
    assert counts == pytest.approx([100.0, 200.0, 30.0], rel=0.07)


REFUSED: list[tuple[str, Callable[..., object], list[tuple[Any, ...]]]] = [
    ("rate", Steady, [(0.0,), (-1.0,), (math.nan,), (-math.inf,)]),
    ("burstiness", Steady, [(1.0, 0.0), (1.0, -1.0), (1.0, math.nan)]),
    ("ramp", Ramp, [(0.0, 1.0, 1.0), (1.0, math.inf, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, math.inf)]),
    ("burstiness", Ramp, [(1.0, 2.0, 3.0, RampShape.LINEAR, 0.0)]),
    ("duration", Ramp.over_count, [(1.0, 2.0, 0)]),
    ("rate", Steps, [(((-1.0, 1.0),),), (((1.0, 0.0),),), (((math.inf, 1.0),),), (((0.0, 5.0),),), ((),)]),
    ("burstiness", Steps, [(((1.0, 1.0),), -2.0)]),
    ("scale", ReplayedArrivals, [(0.0,), (-1.0,), (math.inf,), (math.nan,)]),
    ("contains no requests", ReplayedArrivals, [(1.0, 5.0, 5.0), (1.0, 6.0, 5.0), (1.0, -1.0, 5.0)]),
]


@pytest.mark.parametrize(("words", "make", "rows"), REFUSED)
def test_impossible_arrivals_are_refused(words: str, make: Callable[..., object], rows: list[tuple[Any, ...]]) -> None:
    for values in rows:
        with pytest.raises(UsageError, match=words):
            make(*values)
