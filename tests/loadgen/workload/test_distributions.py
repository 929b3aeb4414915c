"""Distributions have the mean, median and ends that their names promise."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.workload.distributions import Distribution, Fixed, Histogram, LogNormal, Normal, Uniform

MANY = 20_000


def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def test_fixed_draws_nothing() -> None:
    generator = rng()
    assert (Fixed(2.5).value(generator), Fixed(2.5).whole(generator)) == (2.5, 3)
    assert generator.random() == rng().random()


def test_uniform_whole_numbers_are_equally_likely_at_the_ends_too() -> None:
    generator = rng()
    counts = Counter(Uniform(3, 6).whole(generator) for _ in range(MANY))
    assert sorted(counts) == [3, 4, 5, 6]
    assert list(counts.values()) == pytest.approx([MANY / 4] * 4, rel=0.06)


def test_uniform_values_fill_the_range() -> None:
    generator = rng()
    values = [Uniform(0.2, 0.7).value(generator) for _ in range(2000)]
    assert 0.2 <= min(values) < 0.21
    assert 0.69 < max(values) <= 0.7
    assert Uniform(0.2, 0.7).whole(generator) == 1


def test_normal_has_mean_and_deviation() -> None:
    generator = rng()
    values = [Normal(50, 5).whole(generator) for _ in range(MANY)]
    assert np.mean(values) == pytest.approx(50, abs=0.2)
    assert np.std(values) == pytest.approx(5, rel=0.03)


def test_lognormal_has_the_median_and_the_mean_that_follows() -> None:
    generator = rng()
    values = [LogNormal(100, 0.8).value(generator) for _ in range(MANY)]
    assert np.median(values) == pytest.approx(100, rel=0.03)
    assert np.mean(values) == pytest.approx(100 * math.exp(0.32), rel=0.03)
    assert np.std(np.log(values)) == pytest.approx(0.8, rel=0.03)
    assert isinstance(LogNormal(100, 0.8).whole(generator), int)


def test_histogram_draws_by_weight_and_never_a_value_without_any() -> None:
    generator = rng()
    histogram = Histogram((10, 20, 30, 40), (1, 0, 3, 0))
    counts = Counter(histogram.whole(generator) for _ in range(MANY))
    assert sorted(counts) == [10, 30]
    assert counts[30] / MANY == pytest.approx(0.75, abs=0.01)


def test_equal_seeds_draw_equally() -> None:
    one, other = rng(), rng()
    for kind in (Uniform(1, 9), Normal(5, 1), LogNormal(5, 1), Histogram((1, 2), (1, 1))):
        assert [kind.value(one) for _ in range(5)] == [kind.value(other) for _ in range(5)]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Uniform(5, 4), "smaller number first"),
        (lambda: Normal(5, -1), "deviation"),
        (lambda: LogNormal(0, 1), "median"),
        (lambda: LogNormal(1, -1), "sigma"),
        (lambda: Histogram((), ()), "weights"),
        (lambda: Histogram((1,), (1, 2)), "weights"),
        (lambda: Histogram((1,), (0,)), "weights"),
        (lambda: Histogram((1, 2), (1, -1)), "weights"),
        (lambda: Histogram((1,), (math.inf,)), "weights"),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], Distribution], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make()
