"""Synthetic requests have the requested rate, burstiness, lengths and common prefix."""

import math
from typing import Any

import numpy as np
import pytest

from loadgen.trace.draws import Gaps, histogram, random_stream, stationary_events
from serving.errors import ConfigError
from serving.virtual.workload.synthetic import Lengths, LogNormalLengths, synthetic_workload
from tests.virtual.workload.traces import listed


def gaps_of(cv: float) -> np.ndarray:
    """Gaps between about 20,000 requests."""
    requests = listed(synthetic_workload(20, 1000, 10, 10, cv=cv, seed=3))
    return np.diff([0.0, *(request.arrival_s for request in requests)])


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_rate_and_burstiness(cv: float) -> None:
    gaps = gaps_of(cv)
    assert len(gaps) == pytest.approx(20_000, rel=0.01 + 0.03 * cv)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08, abs=1e-9)


def test_arrivals_end_with_the_duration_and_the_name_says_what_it_is() -> None:
    workload = synthetic_workload(3, 100, 10, 10)
    arrivals = [request.arrival_s for request in workload.requests]
    assert arrivals == sorted(arrivals)
    assert 0 < arrivals[0] < arrivals[-1] < 100
    assert (workload.duration_s, workload.count) == (100, None)
    assert synthetic_workload(2, 10, 5, [1, 2]).name == "synthetic, 2 requests/s, prompts 5, answers of 2 lengths"
    name = synthetic_workload(2, 10, LogNormalLengths(9, 1), 1, cv=2, reuse=0.5).name
    assert name == "synthetic, 2 requests/s, prompts 9 on average, answers 1, cv 2, reuse 50%"


def test_the_seed_decides_everything_and_lengths_do_not_move_arrivals() -> None:
    workload = synthetic_workload(10, 100, LogNormalLengths(100, 1), [1, 2, 3], seed=5)
    assert (
        listed(workload)
        == listed(workload)
        == listed(synthetic_workload(10, 100, LogNormalLengths(100, 1), [1, 2, 3], seed=5))
    )
    assert listed(workload) != listed(synthetic_workload(10, 100, LogNormalLengths(100, 1), [1, 2, 3], seed=6))
    # Streams are independent: draws of lengths do not change arrivals.
    plain = listed(synthetic_workload(10, 100, 50, 10))
    drawn = listed(synthetic_workload(10, 100, LogNormalLengths(100, 1), [1, 2]))
    assert [r.arrival_s for r in plain] == [r.arrival_s for r in drawn]


@pytest.mark.parametrize(
    ("lengths", "mean", "among"),
    [
        (4096, 4096, {4096}),
        ([10, 20, 20, 30], 20, {10, 20, 30}),
        (LogNormalLengths(1000, 0.5), 1000, None),
        (LogNormalLengths(7, 0), 7, {7}),
    ],
)
def test_lengths(lengths: Lengths, mean: float, among: set[int] | None) -> None:
    requests = listed(synthetic_workload(100, 100, lengths, lengths))
    for drawn in ([r.prompt_tokens for r in requests], [r.output_tokens for r in requests]):
        assert np.mean(drawn) == pytest.approx(mean, rel=0.03)
        assert among is None or set(drawn) == among


def test_histogram_draws_in_proportion_and_log_normal_lengths_are_cut() -> None:
    drawn = LogNormalLengths(100, 3, low=20, high=200).draw(1000, random_stream(0, "test"))
    assert (drawn.min(), drawn.max()) == (20, 200)
    drawn = histogram([0.2, 10, 20], [1, 2, 5]).draw(8000, random_stream(0, "test"))
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [1, 10, 20]
    assert counts.tolist() == pytest.approx([1000, 2000, 5000], rel=0.1)


@pytest.mark.parametrize(("reuse", "blocks"), [(0.0, 0), (0.5, 16), (0.9, 29), (1.0, 32)])
def test_a_common_prefix_of_whole_blocks(reuse: float, blocks: int) -> None:
    workload = synthetic_workload(10, 10, 4096, 1, reuse=reuse)
    assert {request.blocks for request in workload.requests} == {tuple(range(blocks))}
    assert workload.block_tokens == 128


def test_a_common_prefix_never_ends_in_a_partial_block() -> None:
    for request in synthetic_workload(10, 100, LogNormalLengths(300, 1), 1, reuse=1.0, block_tokens=100).requests:
        assert len(request.blocks) == request.prompt_tokens // 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": 0},
        {"duration_s": math.inf},
        {"cv": -1},
        {"reuse": 1.5},
        {"block_tokens": 0},
        {"prompt_tokens": 0},
        {"output_tokens": []},
    ],
)
def test_what_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        synthetic_workload(**({"rate_per_s": 1, "duration_s": 1, "prompt_tokens": 1, "output_tokens": 1} | wrong))


@pytest.mark.parametrize("wrong", [(0, 1, 1, 2), (1, -1, 1, 2), (1, 1, 0, 2), (1, 1, 3, 2)])
def test_no_distribution(wrong: tuple[float, float, int, int]) -> None:
    with pytest.raises(ConfigError, match="no distribution of lengths"):
        LogNormalLengths(*wrong)


@pytest.mark.parametrize("gaps", Gaps)
@pytest.mark.parametrize("shape", [0.3, 1.0, 4.0])
def test_stationary_events_are_as_many_as_expected_in_short_windows_too(gaps: Gaps, shape: float) -> None:
    rng = random_stream(1, f"{gaps}/{shape}")
    windows = [stationary_events(gaps, shape, 2.0, rng) for _ in range(4000)]
    assert np.mean([len(events) for events in windows]) == pytest.approx(2.0, rel=0.1)
    assert all((np.diff(events) >= 0).all() and (events < 2.0).all() for events in windows)
    # As many in the first half as in the second: no burst at the start, no hole either.
    first = np.concatenate(windows) < 1.0
    assert first.mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("values", "weights"), [([], []), ([1], [0]), ([1, 2], [2, -1]), ([1], [math.inf]), ([math.inf], [1])]
)
def test_no_histogram(values: list[float], weights: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        histogram(values, weights)
