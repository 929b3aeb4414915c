"""Recorded times at their own pace, faster, and in part."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import ReplayedArrivals
from loadgen.errors import UsageError


@given(st.floats(0, 1e9))
def test_by_default_a_time_is_itself(time: float) -> None:
    assert ReplayedArrivals().due_s(time) == time


def test_the_window_is_cut_out_and_scaled() -> None:
    replay = ReplayedArrivals(rate_scale=4.0, from_s=10.0, to_s=20.0)
    assert [replay.due_s(t) for t in (9.9, 10.0, 12.0, 19.0, 20.0)] == [None, 0.0, 0.5, 2.25, None]
    assert not replay.is_over(19.9)
    assert replay.is_over(20.0)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_the_scale_must_be_above_zero(scale: float) -> None:
    with pytest.raises(UsageError, match="scale"):
        ReplayedArrivals(rate_scale=scale)


@pytest.mark.parametrize("window", [(5.0, 5.0), (6.0, 5.0), (-1.0, 5.0)])
def test_the_window_must_hold_something(window: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="holds nothing"):
        ReplayedArrivals(from_s=window[0], to_s=window[1])
