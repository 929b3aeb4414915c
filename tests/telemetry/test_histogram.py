from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.telemetry.histogram import SECONDS_TTFT, BucketHistogram, cumulative, token_buckets


@given(st.lists(st.tuples(st.floats(0, 5000), st.integers(1, 5))))
def test_buckets_hold_what_was_observed(observations: list[tuple[float, int]]) -> None:
    histogram = BucketHistogram(SECONDS_TTFT)
    for value, times in observations:
        histogram.observe(value, times)
    rows = dict(cumulative(histogram.bounds, histogram.counts))
    for bound in SECONDS_TTFT:
        assert rows[repr(bound)] == sum(times for value, times in observations if value <= bound)
    assert rows["+Inf"] == sum(times for _, times in observations)
    assert histogram.total == pytest.approx(sum(value * times for value, times in observations))


def test_bounds_are_inclusive() -> None:
    histogram = BucketHistogram((1.0, 2.0))
    histogram.observe(1.0)
    assert histogram.counts == [1, 0, 0]
    assert bisect_left((1.0, 2.0), 2.5) == 2


def test_token_buckets_rise_to_the_limit() -> None:
    assert token_buckets(100) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    assert token_buckets(0) == (1.0,)
