"""Totals never fall when members join and leave."""

from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.core.totals import FORGET_S, SourceTotals


def test_sources_add_up_and_stay_when_gone() -> None:
    totals = SourceTotals(2)
    totals.update("a", (3, 1), now=0.0)
    totals.update("b", (4, 0), now=0.0)
    totals.update("a", (5, 1), now=1.0)
    assert totals.sums == [9, 1]


def test_a_restarted_source_counts_anew() -> None:
    totals = SourceTotals(2)
    totals.update("a", (10, 7), now=0.0)
    totals.update("a", (2, 8), now=1.0)
    assert totals.sums == [12, 15], "one counter fell, so all of them began anew"


def test_who_is_silent_for_long_is_forgotten() -> None:
    totals = SourceTotals(1)
    totals.update("a", (10,), now=0.0)
    totals.update("b", (1,), now=FORGET_S + 1)
    totals.update("a", (12,), now=FORGET_S + 2)
    assert totals.sums == [10 + 1 + 12]


def test_what_a_source_counted_elsewhere_does_not_count() -> None:
    totals = SourceTotals(1)
    totals.begin("a", (100,), now=0.0)
    totals.update("a", (103,), now=1.0)
    totals.begin("a", (110,), now=2.0)
    totals.update("a", (110,), now=2.0)
    assert totals.sums == [10], "it began once"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), max_size=30))
def test_sums_never_fall(reports: list[tuple[str, int]]) -> None:
    totals, before = SourceTotals(1), 0.0
    for source, count in reports:
        totals.update(source, (count,), now=0.0)
        assert totals.sums[0] >= before
        before = totals.sums[0]
