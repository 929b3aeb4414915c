"""A gateway's counters of its traffic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.values.signals import Traffic
from serving.values.traffic import BOUNDS_S, TrafficMeter, bucket_of, percentile


def meter(scale: float = 1.0) -> TrafficMeter:
    return TrafficMeter("g1", ttft_s=2.0, tpot_s=0.05, time_scale=scale)


def traffic(of: TrafficMeter, now: float = 0.0) -> Traffic:
    return of.report(now, 0, 0, starved=False).traffic


def test_a_request_from_its_arrival_to_its_end() -> None:
    counted = meter()
    request = counted.accepted(100, now=10.0)
    assert traffic(counted, now=11.5) == Traffic(arrived=1, arrived_tokens=100, oldest_wait_s=1.5)
    request.prompt_done(40)
    request.delivered(0, 1, now=11.5)
    assert traffic(counted, now=11.6).oldest_wait_s == 0.0, "its first token is there"
    request.delivered(0, 20, now=12.5)
    request.end()
    request.end()
    assert traffic(counted) == Traffic(
        arrived=1, arrived_tokens=100, uncached_tokens=40, finished=1, generated_tokens=21, ttft_met=1, tpot_met=1
    )
    assert counted.report(0.0, 0, 0, starved=False).running == 0


def test_broken_promises() -> None:
    counted = meter()
    request = counted.accepted(1, now=0.0)
    request.delivered(0, 1, now=2.5)
    request.delivered(0, 10, now=3.5)
    request.end()
    assert traffic(counted) == Traffic(
        arrived=1, arrived_tokens=1, finished=1, generated_tokens=11, ttft_missed=1, tpot_missed=1
    )


def test_one_token_has_no_time_per_further_token() -> None:
    counted = meter()
    request = counted.accepted(1, now=0.0)
    request.delivered(0, 1, now=1.0)
    request.end()
    assert traffic(counted).tpot_met == traffic(counted).tpot_missed == 0


def test_several_sequences_share_the_time_of_the_longest() -> None:
    counted = meter()
    request = counted.accepted(1, now=0.0)
    for sequence, tokens in ((0, 11), (1, 3)):
        request.delivered(sequence, tokens, now=1.0)
    request.delivered(0, 10, now=1.9)  # 20 gaps in 0.9 s
    request.end()
    assert traffic(counted).tpot_met == 1


def test_a_request_that_fails_waits_no_longer_and_judges_nobody() -> None:
    counted = meter()
    request = counted.accepted(5, now=0.0)
    request.delivered(0, 0, now=0.5)
    request.end()
    assert traffic(counted, now=9.0) == Traffic(arrived=1, arrived_tokens=5, finished=1)


def test_the_oldest_waits_longest_and_refusals_count() -> None:
    counted = meter()
    first, second = counted.accepted(1, now=1.0), counted.accepted(1, now=2.0)
    assert traffic(counted, now=4.0).oldest_wait_s == 3.0
    first.delivered(0, 1, now=4.0)
    assert traffic(counted, now=4.0).oldest_wait_s == 2.0
    second.end()
    first.turned_away()
    counted.refused(30)
    assert traffic(counted, now=4.0) == Traffic(
        arrived=3, arrived_tokens=32, finished=2, generated_tokens=1, ttft_missed=1, rejected=2
    )
    report = counted.report(4.0, 3, 70, starved=True)
    assert (report.traffic.queued, report.traffic.queued_tokens, report.starved) == (3, 70, True)


def test_scaled_time_is_judged_in_promised_seconds() -> None:
    counted = meter(scale=10.0)
    request = counted.accepted(1, now=0.0)
    assert traffic(counted, now=0.1).oldest_wait_s == pytest.approx(1.0)
    request.delivered(0, 1, now=0.3)
    assert traffic(counted).ttft_missed == 1


@given(st.floats(1e-5, 5e3))
def test_a_time_falls_into_its_bucket(seconds: float) -> None:
    index = bucket_of(seconds)
    assert index == len(BOUNDS_S) or seconds <= BOUNDS_S[index] * (1 + 1e-9)
    assert index == 0 or seconds >= BOUNDS_S[index - 1] * (1 - 1e-9)


@given(st.lists(st.floats(2e-3, 9e2), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_percentiles_are_within_a_bucket_of_the_truth(times: list[float], share: float) -> None:
    counts = [0] * (len(BOUNDS_S) + 1)
    for seconds in times:
        counts[bucket_of(seconds)] += 1
    found = percentile(counts, share)
    true = sorted(times)[max(0, min(len(times), -(-int(share * len(times) * 10**9) // 10**9)) - 1)]
    assert found is not None
    assert true / 1.3 <= found <= true * 1.3


def test_nothing_has_no_percentile_and_too_long_is_the_last_bound() -> None:
    assert percentile([0] * (len(BOUNDS_S) + 1), 0.5) is None
    assert percentile([0] * len(BOUNDS_S) + [3], 0.5) == BOUNDS_S[-1]
