"""The best use of a budget, on a supernode whose every answer is known."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tools.planning.candidate import Candidate, SearchSpace, Shape
from serving.tools.planning.split import FIRST, Capacity, best_split, full_splits, highest_rate
from serving.tools.planning.verdict import PlanTarget
from tests.tools.planning.fake import FakeSupernode

TARGET = PlanTarget(2.0, 0.05, 0.9)
SMALL, LARGE = Shape(2, 100), Shape(4, 100)
DECODE = Shape(5, 8)


def by_needs(fake: FakeSupernode) -> Capacity:
    """Capacity as a cost model would tell it."""

    def capacity(one: Candidate) -> float:
        return min(one.prefills / fake.prefill_needs[one.prefill], one.decodes / fake.decode_needs[one.decode])

    return capacity


@given(budget=st.integers(7, 40), prefill=st.integers(1, 9), decode=st.integers(1, 5))
@settings(deadline=None, max_examples=80)
def test_no_full_split_has_a_higher_goodput(budget: int, prefill: int, decode: int) -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE,), budget)
    fake = FakeSupernode({SMALL: prefill, LARGE: max(1, prefill // 2)}, {DECODE: decode})
    best, tried = best_split(space, by_needs(fake), fake.evaluate)
    assert best is not None
    highest = max(fake.verdict(one).goodput_per_s for one in full_splits(space))
    assert fake.verdict(best).goodput_per_s == highest == tried[best].goodput_per_s


def test_full_splits_have_no_room_left() -> None:
    space = SearchSpace((SMALL,), (DECODE,), 12)
    assert sorted(full_splits(space)) == [Candidate(SMALL, 1, DECODE, 2), Candidate(SMALL, 3, DECODE, 1)]
    assert full_splits(SearchSpace((SMALL,), (DECODE,), 6)) == []


def test_another_batch_limit_is_tried_with_the_best_split() -> None:
    usual, shorter = Shape(2, 100), Shape(2, 25)
    space = SearchSpace((usual, shorter), (DECODE,), 13)
    fake = FakeSupernode({usual: 6, shorter: 4}, {DECODE: 1})
    best, tried = best_split(space, by_needs(fake), fake.evaluate)
    assert best == Candidate(shorter, 4, DECODE, 1)
    assert sum(one.prefill == shorter for one in tried) == 1


def test_a_budget_without_room_has_no_split() -> None:
    fake = FakeSupernode({SMALL: 1}, {DECODE: 1})
    assert best_split(SearchSpace((SMALL,), (DECODE,), 6), by_needs(fake), fake.evaluate) == (None, {})


def test_no_more_splits_are_simulated_than_said() -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE,), 300)
    fake = FakeSupernode({SMALL: 9, LARGE: 5}, {DECODE: 5})
    best_split(space, by_needs(fake), fake.evaluate)
    assert sum(not probe.whole for probe in fake.asked) == FIRST


@given(prefill=st.integers(1, 60), decode=st.integers(1, 20))
@settings(deadline=None, max_examples=60)
def test_the_highest_rate_holds_and_a_tenth_more_does_not(prefill: int, decode: int) -> None:
    space = SearchSpace((SMALL, LARGE), (DECODE,), 40)
    fake = FakeSupernode({SMALL: prefill, LARGE: prefill}, {DECODE: decode})
    best, rate, tried = highest_rate(space, by_needs(fake), fake.evaluate, TARGET)
    assert best is not None
    assert fake.verdict(best, rate).holds(TARGET)
    assert tried[best].holds(TARGET)
    splits = full_splits(space)
    assert not any(fake.verdict(one, 1.1 * rate).holds(TARGET) for one in splits)


def test_a_rate_that_never_holds_is_no_plan() -> None:
    space = SearchSpace((SMALL,), (DECODE,), 12)
    fake = FakeSupernode({SMALL: 10**9}, {DECODE: 1})
    assert highest_rate(space, by_needs(fake), fake.evaluate, TARGET) == (None, 0.0, {})
