"""Intervals of ratios: against tables, and by their coverage."""

import math

import numpy as np
import pytest

from loadgen.compare.statistics import block_indices, bootstrap_ratio, welch_ratio
from loadgen.metrics.distribution import student_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (10, 2.22814), (1000, 1.96234)]
)
def test_student_quantiles_of_the_table(freedom: float, quantile: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(quantile, rel=2e-5)


def test_the_ratio_of_welch() -> None:
    """Logs 0, 0.2 and 1, 1.4: means 0.1 and 1.2; variances 0.02 and 0.08; error sqrt(0.01 + 0.04); freedom 25/17."""
    ratio, interval = welch_ratio([1.0, math.exp(0.2)], [math.e, math.exp(1.4)])
    assert ratio == pytest.approx(math.exp(1.1))
    assert interval is not None
    half = student_quantile(0.975, 25 / 17) * math.sqrt(0.05)
    assert np.log(interval) == pytest.approx([1.1 - half, 1.1 + half])

    assert welch_ratio([1.0], [2.0, 2.1])[1] is None
    ratio, interval = welch_ratio([1.0, 1.0], [2.0, 2.0])
    assert ratio == pytest.approx(2.0)
    assert interval == pytest.approx((2.0, 2.0))


def test_welch_covers_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(600):
        first, second = rng.lognormal(0, 0.1, 4), rng.lognormal(math.log(1.2), 0.3, 5)
        _, interval = welch_ratio(first.tolist(), second.tolist())
        assert interval is not None
        hits += interval[0] <= 1.2 <= interval[1]
    assert 0.92 <= hits / 600 <= 0.98


def test_blocks_are_neighbours_and_cover_every_place_evenly() -> None:
    rng = np.random.default_rng(0)
    (indices,) = block_indices(100, 1, rng)
    assert len(indices) == 100
    assert (np.diff(indices[:10]) % 100 == 1).all()
    counts = np.bincount(block_indices(100, 2000, rng).reshape(-1), minlength=100)
    assert counts.min() > 1600
    assert counts.max() < 2400
    assert block_indices(1, 1, rng).tolist() == [[0]]


def _mean(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.mean(-1))


def test_bootstrap_covers_a_known_ratio() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(60):
        first, second = rng.exponential(1.0, 400), rng.exponential(1.1, 400)
        _, interval = bootstrap_ratio(first, second, _mean, rng, paired=False)
        assert interval is not None
        hits += interval[0] <= 1.1 <= interval[1]
    assert hits >= 51

    rng = np.random.default_rng(6)
    values = np.array([1.0, np.nan, 3.0] * 30)
    ratio, _ = bootstrap_ratio(values, 2 * values, _mean, rng, paired=True)
    assert ratio == pytest.approx(2.0)
    assert bootstrap_ratio(np.zeros(9), np.ones(9), _mean, rng, paired=False)[1] is None


def test_bootstrap_narrows_by_pairs_and_widens_by_runs() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.lognormal(0, 1, 500)
    first, second = lengths, 1.05 * lengths * rng.normal(1, 0.01, 500)
    widths = {}
    for paired in (True, False):
        _, interval = bootstrap_ratio(first, second, _mean, np.random.default_rng(4), paired=paired)
        assert interval is not None
        widths[paired] = interval[1] - interval[0]
    assert widths[True] < 0.1 * widths[False]

    # Values that come in runs of twenty equal ones carry a twentieth of the information.
    rng = np.random.default_rng(5)
    single = rng.exponential(1.0, 1000)
    runs = np.repeat(rng.exponential(1.0, 50), 20)
    spans = []
    for values in (single, runs):
        _, interval = bootstrap_ratio(values, values.copy(), _mean, rng, paired=False)
        assert interval is not None
        spans.append(interval[1] - interval[0])
    assert spans[1] > 2 * spans[0]
