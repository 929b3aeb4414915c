"""Results of the cost model alone: possible sizes, limits, and the minimum number of instances."""

import dataclasses

import numpy as np
import pytest

from hardware.cost import CostModel
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.feasible import SearchStart, capacity_per_s, start
from serving.tools.planning.trace import PlanDemand, demand
from serving.tools.planning.verdict import PlanTarget
from serving.virtual.workload.columns import RequestStream, TraceError, TraceRequest
from tests.tools.planning.traces import config

CONFIG = config()
WANTED = SearchLimits((16, 32), (64, 160), 384)


def made(*requests: tuple[int, int, int], duration_s: float = 100.0) -> PlanDemand:
    """Requests as (prompt, output, reused)."""
    prompt, output, reused = (np.array(column, np.int64) for column in zip(*requests, strict=True))
    return PlanDemand(duration_s, prompt, output, reused, True)


def begin(cost: CostModel, wanted: SearchLimits, target: PlanTarget, *requests: tuple[int, int, int]) -> SearchStart:
    return start(cost, CONFIG, made(*requests), wanted, target)


def test_sizes_that_cannot_be_are_dropped_with_the_reason(cost: CostModel) -> None:
    found = begin(cost, SearchLimits((4, 16), (64,), 384), PlanTarget(2, 0.05, 0.9), (1000, 100, 0))
    assert {one.npus for one in found.space.prefill} == {16}
    assert "does not fit" in found.dropped[0].why
    assert "4 NPUs" in found.dropped[0].what

    target = PlanTarget(2.0, 0.05, 0.9)
    slow = (120_000, 100, 0)
    assert (
        bounds.prefill_times(cost, CONFIG, made(slow), 16)[0]
        > 2.0
        > bounds.prefill_times(cost, CONFIG, made(slow), 64)[0]
    )
    found = begin(cost, SearchLimits((16, 64), (64,), 384), target, slow)
    assert {one.npus for one in found.space.prefill} == {64}
    assert "even an idle one keeps TTFT of 2 s for 0 %" in found.dropped[0].why


def test_slos_that_no_size_can_hold_are_one_line(cost: CostModel) -> None:
    with pytest.raises(ConfigError, match=r"TPOT of 5 ms: the smallest possible is 1\d\.\d+ ms, in an idle instance"):
        begin(cost, WANTED, PlanTarget(2.0, 0.005, 0.9), (1000, 100, 0), (1000, 1, 0))
    with pytest.raises(ConfigError, match="TTFT of 1 ms: the smallest possible is"):
        begin(cost, WANTED, PlanTarget(0.001, 0.05, 0.9), (1000, 100, 0))
    requests = [(1000, 100, 0)] * 9 + [(120_000, 100, 0)]
    with pytest.raises(ConfigError, match=r"TTFT of 1 s for 99 % .* keeps it for 90.0 %, and .* relax --ttft"):
        begin(cost, WANTED, PlanTarget(1.0, 0.05, 0.99), *requests)
    assert begin(cost, WANTED, PlanTarget(1.0, 0.05, 0.9), *requests).space.prefill
    with pytest.raises(ConfigError, match=r"no decode size is possible .* leaves none of 64 NPUs"):
        begin(cost, SearchLimits((16,), (64, 160), 64), PlanTarget(2, 0.05, 0.9), (1000, 100, 0))
    with pytest.raises(ConfigError, match="70 NPUs hold no plan"):
        begin(cost, SearchLimits((16,), (64,), 70), PlanTarget(2, 0.05, 0.9), (1000, 100, 0))


def test_floors_grow_with_the_load_and_capacity_with_instances(cost: CostModel) -> None:
    target, shape = PlanTarget(2, 0.05, 0.9), Shape(16, 16_384)
    light = made(*[(4000, 100, 0)] * 100)
    heavy = dataclasses.replace(light, duration_s=0.5)
    assert bounds.least_prefills(cost, CONFIG, light, shape, target) == 1
    assert bounds.least_prefills(cost, CONFIG, heavy, shape, target) > 1
    decode = Shape(64, 1)
    many = made(*[(1000, 1000, 0)] * 20_000)
    assert bounds.least_decodes(cost, CONFIG, light, decode, target) == 1
    assert bounds.least_decodes(cost, CONFIG, many, decode, target) > 1
    target, load = PlanTarget(2, 0.05, 0.9), made((4000, 400, 0))
    one = Candidate(Shape(16, 16_384), 1, Shape(64, 96), 1)
    two = dataclasses.replace(one, prefills=2, decodes=2)
    first, second = (capacity_per_s(cost, CONFIG, load, target, plan) for plan in (one, two))
    assert second == pytest.approx(2 * first)
    fresh, again = (bounds.prefill_times(cost, CONFIG, made((8000, 1, reused)), 16)[0] for reused in (0, 7000))
    assert again < fresh


def test_a_step_of_many_prompts_is_not_taken_for_one_long_prompt(cost: CostModel) -> None:
    """An instance's best rate is that of the cost model for a full step of such prompts."""
    shape, asked = Shape(16, 4096), made((4000, 100, 0), (2000, 100, 0))
    tokens = 16 * 4096
    attended = (4000**2 + 2000**2) / 2 / 6000
    full = tokens / cost.prefill_table(dies=32).seconds(tokens, tokens * attended)
    assert asked.attended == pytest.approx(attended)
    assert bounds.prefill_tokens_per_s(cost, CONFIG, shape, asked.attended) == pytest.approx(full)
    one_prompt = tokens / cost.prefill_table(dies=32).seconds(tokens, tokens**2 / 2)
    assert full > 1.5 * one_prompt

    assert made((4000, 100, 3000)).attended == 3000 + 500
    assert made((4000, 100, 3000), (2000, 100, 0)).attended == pytest.approx((1000 * 3500 + 2000 * 1000) / 3000)


def test_limits_begin_with_the_configuration(cost: CostModel) -> None:
    target, request = PlanTarget(2, 0.02, 0.9), (4000, 400, 0)
    space = begin(cost, SearchLimits((16,), (64,), 384), target, request).space
    usual = CONFIG.decode.max_sequences // CONFIG.decode.dies_per_instance
    assert [one.limit for one in space.prefill] == [16_384, 4096]
    assert space.decode[0].limit == usual
    assert 0 < space.decode[1].limit < usual
    chosen = begin(cost, SearchLimits((16,), (64,), 384, (100,), (7, 5)), target, request).space
    assert [one.limit for one in chosen.prefill] == [100]
    assert [one.limit for one in chosen.decode] == [7, 5]


def test_demand_counts_what_an_ideal_cache_saves() -> None:
    requests = [
        TraceRequest(0.0, 1100, 5, (1, 2, 3)),
        TraceRequest(1.0, 1024, 5, (1, 2)),
        TraceRequest(2.0, 600, 5, (1, 9)),
    ]
    found = demand(RequestStream("three", requests), reuse=True)
    assert found.reused.tolist() == [0, 1023, 512]
    assert found.uncached.tolist() == [1100, 1, 88]
    assert demand(RequestStream("three", requests), reuse=False).reused.tolist() == [0, 0, 0]
    assert not demand(RequestStream("three", requests), reuse=True, most=2).complete

    with pytest.raises(TraceError, match="it has no requests to plan for"):
        demand(RequestStream("none", []), reuse=True)
