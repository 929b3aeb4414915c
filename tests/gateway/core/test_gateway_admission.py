"""Recent rates, for honest answers about when to come back."""

import pytest

from serving.gateway.core.drain_rate import DrainRate
from serving.values.throughput import MAX_RETRY_S, MIN_RETRY_S, UNKNOWN_RETRY_S, BusyThroughput, retry_after_s


def test_the_estimate_is_bounded_and_honest_about_not_knowing() -> None:
    assert retry_after_s(100, 0.0) == UNKNOWN_RETRY_S
    assert retry_after_s(1, 1e9) == MIN_RETRY_S
    assert retry_after_s(10**9, 1.0) == MAX_RETRY_S


def test_throughput_follows_a_change() -> None:
    rate = BusyThroughput(half_life_s=1.0)
    assert rate.tokens_per_s == 0.0
    for _ in range(100):
        rate.observe(10, 0.1)
    assert rate.tokens_per_s == pytest.approx(100.0)
    for _ in range(100):
        rate.observe(20, 0.1)
    assert rate.tokens_per_s == pytest.approx(200.0, rel=0.01)
    rate.observe(0, 0.0)
    assert rate.tokens_per_s == pytest.approx(200.0, rel=0.01)


def test_a_drain_rate_begins_with_littles_law_and_then_is_measured() -> None:
    rate = DrainRate(seats=10)
    assert (rate.requests_per_s, rate.tokens_per_s, rate.measured) == (0.0, 0.0, False)
    rate.started(1, 100, queued=False)
    rate.finished(5.0)
    assert rate.requests_per_s == pytest.approx(10 / 5)
    assert rate.tokens_per_s == pytest.approx(200.0)
    for _ in range(40):
        rate.waited(0.25)
        rate.started(1, 100, queued=True)
    assert rate.measured
    assert rate.requests_per_s == pytest.approx(4.0, rel=0.05)
    assert rate.tokens_per_s == pytest.approx(400.0, rel=0.05)


def test_requests_of_several_sequences_take_several_seats() -> None:
    rate = DrainRate(seats=8)
    for _ in range(200):
        rate.started(4, 10, queued=False)
    rate.finished(2.0)
    assert rate.requests_per_s == pytest.approx(1.0, rel=0.01)
