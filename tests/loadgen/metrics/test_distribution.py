"""Percentiles, failures as infinity, intervals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.distribution import distribution, grouped_mean_interval, mean_interval, name_of, t95, wilson
from loadgen.metrics.summary import summarize
from loadgen.metrics.verdict import GeneratorFacts, Identity
from loadgen.metrics.vllm_keys import flat
from loadgen.record import RequestRecord
from loadgen.result import RunResult
from loadgen.run_report.run_charts import time_charts
from tests.loadgen.metrics.stamps import record


def test_percentiles_are_exact_and_failures_infinitely_late() -> None:
    found = distribution(np.array([4.0, 1.0, 3.0, 2.0]), "s", [50, 75, 99.9])
    assert found.percentiles["50"] == 2.5
    assert found.percentiles["75"] == 3.25
    assert found.percentiles["99.9"] == pytest.approx(3.997)
    assert (found.count, found.mean, found.min, found.max) == (4, 2.5, 1.0, 4.0)
    assert found.std == pytest.approx(1.118, abs=1e-3)
    assert found.with_failures == {}

    # Values 1, 2, 3 and one failure: the median is between 2 and 3, the 99th percentile is infinite.
    found = distribution(np.array([1.0, 2.0, 3.0]), "s", [50, 99], failures=1)
    assert found.with_failures == {"50": 2.5, "99": None}
    assert distribution(np.empty(0), "s", [50], failures=2).with_failures == {"50": None}
    assert distribution(np.empty(0), "s", [50]).mean is None
    assert [name_of(p) for p in (50.0, 99.9, 99.99999, 100.0)] == ["50", "99.9", "99.99999", "100"]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.integers(0, 10))
def test_curve_ascends_and_failures_only_raise(values: list[float], failures: int) -> None:
    found = distribution(np.array(values), "s", [50, 90], failures=failures)
    heights = [height for _, height in found.curve]
    assert heights == sorted(heights)
    for name, value in found.with_failures.items():
        assert value is None or value >= found.percentiles[name] - 1e-9


def test_intervals_against_tables() -> None:
    assert wilson(90, 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(10, 10)[1] == 1.0
    assert t95(1) == pytest.approx(12.7062, rel=2e-5)
    assert t95(60) == pytest.approx(2.0003, abs=1e-3)
    assert t95(120) == pytest.approx(1.9799, abs=1e-3)
    with pytest.raises(ValueError, match="degree of freedom"):
        t95(0)
    assert mean_interval([1.0]) is None
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((-0.484, 4.484), abs=1e-3)


def test_values_of_one_request_are_not_independent() -> None:
    """Ten gaps of 1 s and ten of 3 s, from two requests: two observations, so the interval is that of (1, 3)."""
    gaps, sizes = np.repeat([1.0, 3.0], 10), np.array([10, 10])
    found = distribution(gaps, "s", [50], sizes=sizes)
    assert found.ci95 == pytest.approx(mean_interval([1.0, 3.0]))
    alone = mean_interval(gaps)
    assert alone is not None
    assert found.ci95 is not None
    assert alone[0] > found.ci95[0]

    # (1), () and (2, 3): the mean is 2, the sums 1 and 5 are off by -1 and +1 from it; t = 12.7062, mean size 1.5.
    half = 12.7062047 * 2**0.5 / (2**0.5 * 1.5)
    uneven = grouped_mean_interval(np.array([1.0, 2.0, 3.0]), np.array([1, 0, 2]))
    assert uneven == pytest.approx((2 - half, 2 + half))
    assert grouped_mean_interval(np.array([1.0, 2.0]), np.array([2, 0])) is None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_groups_of_one_are_a_plain_mean(values: list[float]) -> None:
    grouped = grouped_mean_interval(np.array(values), np.ones(len(values), dtype=np.int64))
    assert grouped == pytest.approx(mean_interval(values), abs=1e-9)


_ROUNDING = 1.001
_WHOLE_TOKENS_PER_S = 0.5 / 0.25
"""Each bin's tokens are rounded, and the shortest of several bins lasts a quarter of a second."""


@st.composite
def _runs(draw: st.DrawFn) -> list[RequestRecord]:
    """Requests that start within some seconds, take 10 ms to 3 s, and stream or do not."""
    records = []
    for index in range(draw(st.integers(1, 12))):
        begin = draw(st.floats(0.0, draw(st.sampled_from([0.1, 4.0]))))
        lasts = draw(st.floats(0.01, 3.0))
        chunks = [begin + lasts * part for part in sorted(draw(st.lists(st.floats(0.0, 1.0), max_size=5)))]
        records.append(
            record(
                chunks, index=index, intended_s=begin, released_s=begin, started_s=begin, ended_s=begin + lasts,
                output_tokens=draw(st.integers(max(1, len(chunks)), 40)),
            )
        )  # fmt: skip
    return records


@given(_runs())
def test_of_any_run(records: list[RequestRecord]) -> None:
    result = summarize(records, facts=GeneratorFacts(), slo=None, percentiles=[50], identity=Identity())
    flat_keys = flat(
        result, [records], percentile_metrics=[], percentiles=[], detailed=False, request_rate=None, burstiness=1.0,
        max_concurrency=None, num_prompts=len(records), backend="openai", tokenizer=None, date="",
    )  # fmt: skip
    check_peaks(result, flat_keys)
    assert sum(point.sent for point in result.timeline) == len(records)
    assert sum(point.finished for point in result.timeline) == len(records)


def check_peaks(result: RunResult, flat_keys: dict[str, Any]) -> None:
    """Peaks of the flat keys, the time line, and its charts, each next to the mean."""
    rates = result.throughput
    assert flat_keys["max_output_tokens_per_s"] >= rates.output_tokens_per_s
    assert flat_keys["max_concurrent_requests"] >= result.mean_concurrency / _ROUNDING
    assert max(point.open_peak or 0 for point in result.timeline) == result.peak_concurrency
    charts = {chart.id: chart for chart in time_charts(result)}
    assert _highest(charts["tokens"].lines[0].values) >= rates.output_tokens_per_s / _ROUNDING - _WHOLE_TOKENS_PER_S
    assert _highest(charts["rates"].lines[1].values) >= rates.requests_per_s / _ROUNDING
    mean, peak = (_highest(line.values) for line in charts["running"].lines)
    assert result.peak_concurrency == peak >= mean >= result.mean_concurrency / _ROUNDING


def _highest(values: list[float | None]) -> float:
    return max(value or 0.0 for value in values)
