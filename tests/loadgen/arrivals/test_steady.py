"""Constant, Poisson and gamma arrivals against their exact laws."""

import math

import numpy as np
import pytest

from loadgen.arrivals import Steady, each, stream
from loadgen.arrivals.process import BLOCK
from loadgen.errors import UsageError
from tests.loadgen.arrivals.statistics import draw, exponential_cdf, ks_distance, ks_limit, variation

MANY = 20_000


def test_constant_begins_at_once_and_keeps_equal_gaps_without_drift() -> None:
    times = draw(Steady(4.0, math.inf), stream(1), count=MANY)
    assert times.tolist() == [index / 4 for index in range(MANY)]


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


def test_infinite_rate_sends_everything_at_once() -> None:
    assert draw(Steady(math.inf), stream(0), count=3000).tolist() == [0.0] * 3000


def test_times_ascend_over_blocks_and_do_not_depend_on_how_many_are_taken() -> None:
    times = draw(Steady(100.0), stream(2), count=3 * BLOCK + 5)
    assert np.all(np.diff(times) > 0)
    assert draw(Steady(100.0), stream(2), count=10).tolist() == times[:10].tolist()
    one_by_one = each(Steady(100.0), stream(2))
    assert [next(one_by_one) for _ in range(BLOCK + 3)] == times[: BLOCK + 3].tolist()


def test_draw_ends_at_a_time_or_a_count_whichever_comes_first() -> None:
    until = draw(Steady(10.0, math.inf), stream(0), until_s=2.0)
    assert len(until) == 20
    assert until[-1] < 2.0
    assert len(draw(Steady(10.0, math.inf), stream(0), count=5, until_s=2.0)) == 5
    assert len(draw(Steady(10.0), stream(0), until_s=1e-9)) == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, -math.inf])
def test_a_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(UsageError, match="rate"):
        Steady(rate)


@pytest.mark.parametrize("burstiness", [0.0, -1.0, math.nan])
def test_burstiness_must_be_above_zero(burstiness: float) -> None:
    with pytest.raises(UsageError, match="burstiness"):
        Steady(1.0, burstiness)
