"""Intervals and standard errors."""

import math
import statistics

import numpy as np
import pytest

from serving.tools.evaluate.divergence import WindowScores
from serving.tools.evaluate.perplexity import sum_up
from serving.tools.evaluate.statistics import BLOCK_TOKENS, Estimate, block_sums, bootstrap_mean, mean_and_error
from serving.tools.evaluate.texts import Text


def test_blocks_stay_inside_their_part() -> None:
    sums, counts = block_sums([np.ones(BLOCK_TOKENS + 3), np.full(2, 5.0)])
    assert counts.tolist() == [BLOCK_TOKENS, 3, 2]
    assert sums.tolist() == [BLOCK_TOKENS, 3, 10]


def test_the_mean_weighs_tokens_not_parts() -> None:
    assert bootstrap_mean([np.ones(1), np.zeros(99)]).value == pytest.approx(0.01)


def test_the_interval_is_as_wide_as_theory_says() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(2.0, 1.0, BLOCK_TOKENS) for _ in range(100)]
    found = bootstrap_mean(parts)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(100 * BLOCK_TOKENS), rel=0.25)
    assert bootstrap_mean(parts) == found


def test_neighbours_that_agree_make_it_wider() -> None:
    rng = np.random.default_rng(0)
    alike = bootstrap_mean([np.full(BLOCK_TOKENS, rng.normal()) for _ in range(100)])
    assert alike.low is not None
    assert alike.high is not None
    assert alike.high - alike.low > 0.3


def test_one_block_has_no_interval() -> None:
    assert bootstrap_mean([np.array([1.0, 3.0])]) == Estimate(2.0)
    assert Estimate(2.0).map(math.exp) == Estimate(math.exp(2.0))


def test_standard_error_of_a_mean() -> None:
    values = [1.0, 0.0, 1.0, 1.0]
    mean, error = mean_and_error(values)
    assert mean == 0.75
    assert error == pytest.approx(statistics.stdev(values) / 2)
    assert mean_and_error([1.0]) == (1.0, None)


def test_a_short_stride_makes_nothing_look_surer() -> None:
    rng = np.random.default_rng(0)
    level = np.repeat(rng.normal(3.0, 1.0, 64), BLOCK_TOKENS)
    text = Text("some", (), nbytes=1, words=1)

    def width(stride: int) -> float:
        parts = [level[i : i + stride] for i in range(0, len(level), stride)]
        none = np.empty(0)
        scores = [WindowScores(part, none, none, none, begins=i == 0) for i, part in enumerate(parts)]
        found = sum_up("some", [text], scores).perplexity
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(16) == pytest.approx(width(2048))
