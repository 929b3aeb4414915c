"""Sums over pools, planes, faults and caches."""

import dataclasses
import math

import pytest

from serving.virtual.report.latencies import Slo
from serving.virtual.report.pools import fault_summaries, life_s, plane_summaries, pool_summaries
from serving.virtual.report.summary import summarize
from tests.virtual.report.made import made_faults, made_result, made_timeline


def test_pools_come_in_their_order_with_shares_of_their_own_time() -> None:
    result = made_result(100, duration_s=3600.0)
    prefill, decode = pool_summaries(result)
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert prefill.npu_hours == pytest.approx(6 * 16 + 8)  # the late one served half the time
    assert prefill.busy_share == pytest.approx((6 * 0.36 + 0.1) / (6 * 0.9 + 0.4))
    assert prefill.running_share == pytest.approx((6 * 0.54 + 0.2) / (6 * 0.9 + 0.4))
    assert [decode.busy_share, decode.running_share] == pytest.approx([0.5, 1.0])
    assert (prefill.peak_npus, decode.peak_npus) == (112, 160)
    assert decode.output_tokens_per_s == pytest.approx(600_000 / 3600)
    assert decode.tokens_per_busy_npu_s == pytest.approx(600_000 / (160 * 0.93 * 3600))


def test_an_instance_that_hands_over_its_npus_is_not_counted_twice() -> None:
    result = made_result(10, duration_s=100.0)
    one = dataclasses.replace(result.instances[0], stopped_s=50.0)
    other = dataclasses.replace(one, name="next", started_s=50.0, stopped_s=math.nan)
    (pool,) = pool_summaries(dataclasses.replace(result, instances=[other, one]))
    assert pool.peak_npus == 16
    assert (life_s(one, 100.0), life_s(other, 100.0)) == (50.0, 50.0)


def test_planes_and_faults_are_summed() -> None:
    first, second, third = made_timeline(3, 100.0)
    points = [
        dataclasses.replace(first, at_s=0.0, ub_share=0.9),
        dataclasses.replace(second, at_s=10.0, ub_share=0.5),
        dataclasses.replace(third, at_s=100.0, ub_share=0.1, ub_bytes=77),
    ]
    ub = plane_summaries(points)[0]
    assert ub.mean_share == pytest.approx(0.1 * 0.5 + 0.9 * 0.1)
    assert (ub.name, ub.nbytes, ub.peak_share) == ("ub", 77, 0.9)
    again = [*made_faults(100.0), *made_faults(100.0)[:1]]
    die, node, straggler = fault_summaries(again)
    assert [one.kind for one in (die, node, straggler)] == ["die", "node", "straggler"]
    assert (die.count, die.sequences_hit, die.tokens_lost, die.npu_seconds_lost) == (2, 620, 2_480_000, 13120.0)
    result = made_result(50, duration_s=3600.0)
    assert summarize(result).lost_npu_share == pytest.approx((6560 + 80 + 5760) / (3600 * 256))
    crowded = dataclasses.replace(result, faults=result.faults * 1000)
    assert summarize(crowded).lost_npu_share == 1.0
    nothing = dataclasses.replace(result, totals=dataclasses.replace(result.totals, npu_seconds=0.0))
    assert math.isnan(summarize(nothing).lost_npu_share)


def test_outcomes_add_up_and_nothing_at_all_has_a_summary() -> None:
    result = made_result(500)
    summary = summarize(result, Slo(ttft_s=1.0))
    assert sum(summary.outcomes.values()) == summary.requests == 500
    columns = result.requests
    begun = [n for n in range(500) if not math.isnan(columns.first_token_s[n])]
    cached, prompt = (sum(column[n] for n in begun) for column in (columns.cached_tokens, columns.prompt_tokens))
    assert summary.cache.hit_share == pytest.approx(cached / prompt)
    assert summary.cache.pool_hit_share == pytest.approx(0.4)
    assert summary.retried == sum(attempts > 1 for attempts in columns.attempts)
    result = made_result(0, points=0, faults=False)
    totals = dataclasses.replace(result.totals, end_s=0.0, npu_seconds=0.0)
    empty = dataclasses.replace(result, instances=[], totals=totals)
    summary = summarize(empty, Slo(ttft_s=1.0, tpot_s=0.1))
    assert summary.requests == 0
    assert summary.pools == []
    assert math.isnan(summary.throughput.requests_per_s)
    assert all(math.isnan(plane.mean_share) for plane in summary.planes)
