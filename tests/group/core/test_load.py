"""Counts of tokens in a window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.group.core.expert_load import LoadReport, LoadWindow, total


def window(slices: int = 3) -> LoadWindow:
    """Two layers of two experts, slices of 10 s."""
    return LoadWindow(2, 2, slice_s=10.0, slices=slices)


def test_counts_by_layer_expert_slice_and_source() -> None:
    one = window()
    one.add(LoadReport(0, ((1, 2), (3, 4))), 1.0)
    one.add(LoadReport(0, ((1, 0), (0, 0))), 9.0)
    one.add(LoadReport(1, ((5, 5), (5, 5))), 12.0)
    assert one.layer(0, 12.0) == ((2, 2), (5, 5))
    assert one.layer(1, 12.0) == ((3, 4), (5, 5))
    assert one.sources(0, 12.0) == {0: (2, 2), 1: (5, 5)}
    assert total(one.layer(0, 12.0), 2) == (7, 7)
    assert total((), 2) == (0, 0)


def test_what_is_old_or_of_a_rank_that_left_is_forgotten() -> None:
    one = window()
    one.add(LoadReport(0, ((1, 1), (1, 1))), 0.0)
    one.add(LoadReport(1, ((2, 2), (2, 2))), 15.0)
    assert one.layer(0, 29.0) == ((1, 1), (2, 2))
    assert one.layer(0, 30.0) == ((2, 2),)
    one.add(LoadReport(1, ((3, 3), (3, 3))), 35.0)
    one.add(LoadReport(0, ((9, 9), (9, 9))), 5.0)
    assert one.late == 1
    assert one.layer(0, 35.0) == ((2, 2), (3, 3))
    one.forget(1)
    assert one.layer(0, 35.0) == ()


@pytest.mark.parametrize("tokens", [((1, 2),), ((1, 2), (3,)), ((1, 2), (3, -4))])
def test_a_report_of_another_shape_is_refused(tokens: tuple) -> None:
    with pytest.raises(ValueError, match="rank 4 reports"):
        window().add(LoadReport(4, tokens), 0.0)


def test_windows_of_other_shapes_do_not_merge() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        window().merge(LoadWindow(1, 2, slice_s=10.0, slices=3))


reports = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 80)), max_size=12)


@given(reports, st.permutations(range(3)))
def test_windows_merge_in_any_order(entries: list, order: list[int]) -> None:
    whole, parts = window(), [window() for _ in range(3)]
    for rank, tokens, at in sorted(entries, key=lambda one: one[2]):
        for one in (whole, parts[rank]):
            one.add(LoadReport(rank, ((tokens, 0), (0, tokens))), float(at))
    merged = window()
    for part in order:
        merged.merge(parts[part])
    assert [merged.layer(layer, 80.0) for layer in (0, 1)] == [whole.layer(layer, 80.0) for layer in (0, 1)]
    assert merged.sources(1, 80.0) == whole.sources(1, 80.0)
