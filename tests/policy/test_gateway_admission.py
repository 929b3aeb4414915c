"""Accept or refuse with an honest time."""

import pytest

from serving.policy.gateway_admission import AdmissionLimits, GatewayLoad, decide_admission
from serving.policy.throughput import MAX_RETRY_S, MIN_RETRY_S, UNKNOWN_RETRY_S, Throughput, retry_after_s

LIMITS = AdmissionLimits(max_queued_sequences=10, max_queued_tokens=1000)


def test_within_both_limits_is_accepted() -> None:
    decision = decide_admission(GatewayLoad(8, 900, 100.0), LIMITS, 2, 100)
    assert decision.accepted
    assert decision.retry_after_s == 0


def test_too_many_tokens_wait_as_long_as_the_excess_takes() -> None:
    decision = decide_admission(GatewayLoad(5, 900, 100.0), LIMITS, 1, 600)
    assert not decision.accepted
    assert decision.retry_after_s == pytest.approx(5.0)
    assert "900 prompt tokens wait, 1000 may" in decision.reason


def test_too_many_sequences_wait_as_long_as_their_tokens_take() -> None:
    decision = decide_admission(GatewayLoad(10, 500, 100.0), LIMITS, 4, 10)
    assert not decision.accepted
    assert decision.retry_after_s == pytest.approx(4 * 50 / 100)
    assert "10 sequences wait, 10 may" in decision.reason


def test_nobody_is_told_to_wait_longer_than_the_whole_queue() -> None:
    decision = decide_admission(GatewayLoad(2, 100, 100.0), LIMITS, 1, 5000)
    assert decision.retry_after_s == pytest.approx(1.0)


def test_a_job_above_the_limit_gets_in_when_nothing_waits() -> None:
    assert decide_admission(GatewayLoad(0, 0, 0.0), LIMITS, 50, 99_999).accepted


def test_the_estimate_is_bounded_and_honest_about_not_knowing() -> None:
    assert retry_after_s(100, 0.0) == UNKNOWN_RETRY_S
    assert retry_after_s(1, 1e9) == MIN_RETRY_S
    assert retry_after_s(10**9, 1.0) == MAX_RETRY_S


def test_throughput_follows_a_change() -> None:
    rate = Throughput(half_life_s=1.0)
    assert rate.tokens_per_s == 0.0
    for _ in range(100):
        rate.observe(10, 0.1)
    assert rate.tokens_per_s == pytest.approx(100.0)
    for _ in range(100):
        rate.observe(20, 0.1)
    assert rate.tokens_per_s == pytest.approx(200.0, rel=0.01)
    rate.observe(0, 0.0)
    assert rate.tokens_per_s == pytest.approx(200.0, rel=0.01)
