"""The best use of a budget, on a supernode with known results."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tools.planning.candidate import Candidate, SearchSpace, Shape
from serving.tools.planning.npu_search import FIRST, Capacity, best_split, full_splits, highest_rate
from serving.tools.planning.plan import ORDERS, Question, order_of
from serving.tools.planning.verdict import PlanTarget, PlanVerdict
from tests.tools.planning.fake import FakeSupernode

TARGET = PlanTarget(2.0, 0.05, 0.9)
SMALL, LARGE = Shape(2, 100), Shape(4, 100)
DECODE = Shape(5, 8)


def by_needs(fake: FakeSupernode) -> Capacity:
    """Capacity, as a cost model would report it."""

    def capacity(one: Candidate) -> float:
        return min(one.prefills / fake.prefill_needs[one.prefill], one.decodes / fake.decode_needs[one.decode])

    return capacity


@given(budget=st.integers(7, 40), prefill=st.integers(1, 9), decode=st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_no_full_split_has_a_higher_goodput(budget: int, prefill: int, decode: int) -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE,), budget)
    fake = FakeSupernode({SMALL: prefill, LARGE: max(1, prefill // 2)}, {DECODE: decode})
    best, tried = best_split(space, by_needs(fake), fake.evaluate, TARGET)
    assert best is not None
    highest = max(fake.verdict(one).goodput_per_s for one in full_splits(space))
    assert fake.verdict(best).goodput_per_s == highest == tried[best].goodput_per_s


def test_full_splits_have_no_room_left() -> None:
    space = SearchSpace((SMALL,), (DECODE,), 12)
    assert sorted(full_splits(space)) == [Candidate(SMALL, 1, DECODE, 2), Candidate(SMALL, 3, DECODE, 1)]
    assert full_splits(SearchSpace((SMALL,), (DECODE,), 6)) == []
    fake = FakeSupernode({SMALL: 1}, {DECODE: 1})
    assert best_split(SearchSpace((SMALL,), (DECODE,), 6), by_needs(fake), fake.evaluate, TARGET) == (None, {})


def test_another_batch_limit_is_tried_with_the_best_split() -> None:
    usual, shorter = Shape(2, 100), Shape(2, 25)
    space = SearchSpace((usual, shorter), (DECODE,), 13)
    fake = FakeSupernode({usual: 6, shorter: 4}, {DECODE: 1})
    best, tried = best_split(space, by_needs(fake), fake.evaluate, TARGET)
    assert best == Candidate(shorter, 4, DECODE, 1)
    assert sum(one.prefill == shorter for one in tried) == 1


class Idle(FakeSupernode):
    """Every split meets every limit; more prefill instances are faster, in steps of a tenth of the limit."""

    def verdict(self, one: Candidate, rate: float = 1.0) -> PlanVerdict:
        found = super().verdict(one, rate)
        return dataclasses.replace(found, ttft_p99_s=TARGET.ttft_s * max(0.1, (10 - one.prefills) / 10 + 0.001))


def test_splits_of_the_same_goodput_are_told_apart_by_latency_then_by_npus() -> None:
    space = SearchSpace((SMALL,), (DECODE,), 23)
    fake = Idle({SMALL: 1}, {DECODE: 1})
    best, tried = best_split(space, by_needs(fake), fake.evaluate, TARGET)
    assert len({fake.verdict(one).goodput_per_s for one in tried}) == 1
    assert best == Candidate(SMALL, 9, DECODE, 1)
    few, many = Candidate(SMALL, 9, DECODE, 1), Candidate(SMALL, 9, DECODE, 2)
    key = order_of("goodput", space, TARGET)
    assert fake.verdict(few).latency_percent(TARGET) == fake.verdict(many).latency_percent(TARGET) == 20.0
    assert sorted([many, few], key=lambda one: key(one, fake.verdict(one))) == [few, many]


@pytest.mark.parametrize("question", list(ORDERS))
def test_no_two_plans_are_in_arbitrary_order(question: Question) -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE, Shape(5, 4)), 20)
    verdict = FakeSupernode({SMALL: 1}, {DECODE: 1}).verdict(Candidate(SMALL, 1, DECODE, 1))
    key = order_of(question, space, TARGET)
    keys = [key(one, verdict) for one in space.candidates()]
    assert len(set(keys)) == len(keys) > 20


def test_the_latency_of_a_plan_is_in_whole_percents_of_the_nearer_limit() -> None:
    verdict = FakeSupernode({SMALL: 1}, {DECODE: 1}).verdict(Candidate(SMALL, 1, DECODE, 1))
    assert dataclasses.replace(verdict, ttft_p99_s=1.0049, tpot_p99_s=0.01).latency_percent(TARGET) == 50
    assert dataclasses.replace(verdict, ttft_p99_s=1.0, tpot_p99_s=0.04).latency_percent(TARGET) == 80
    assert dataclasses.replace(verdict, tpot_p99_s=math.nan).latency_percent(TARGET) == 50
    assert dataclasses.replace(verdict, ttft_p99_s=math.nan, tpot_p99_s=math.nan).latency_percent(TARGET) == math.inf


def test_no_more_is_simulated_than_said() -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE,), 300)
    fake = FakeSupernode({SMALL: 9, LARGE: 5}, {DECODE: 5})
    best_split(space, by_needs(fake), fake.evaluate, TARGET)
    assert sum(not probe.whole for probe in fake.asked) == FIRST
    space = SearchSpace((SMALL,), (DECODE,), 12)
    fake = FakeSupernode({SMALL: 10**9}, {DECODE: 1})
    assert highest_rate(space, by_needs(fake), fake.evaluate, TARGET) == (None, 0.0, {})


@given(prefill=st.integers(1, 60), decode=st.integers(1, 20))
@settings(deadline=None, max_examples=30)
def test_the_highest_rate_holds_and_a_tenth_more_does_not(prefill: int, decode: int) -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE,), 40)
    fake = FakeSupernode({SMALL: prefill, LARGE: prefill}, {DECODE: decode})
    best, rate, tried = highest_rate(space, by_needs(fake), fake.evaluate, TARGET)
    assert best is not None
    assert fake.verdict(best, rate).holds(TARGET)
    assert tried[best].holds(TARGET)
    splits = full_splits(space)
    assert not any(fake.verdict(one, 1.1 * rate).holds(TARGET) for one in splits)
