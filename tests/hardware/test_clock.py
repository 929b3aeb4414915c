"""Clocks: real, scaled and virtual."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.clock import Clock, ScaledClock, VirtualClock, WallClock
from hardware.errors import ClockError


def test_the_wall_clock_never_goes_back() -> None:
    clock = WallClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
    assert readings[-1] > 0


def test_a_scaled_clock_runs_faster_by_its_scale() -> None:
    base = VirtualClock(start=100.0)
    clock = ScaledClock(10.0, base)
    assert clock.now() == 0.0
    base.advance_to(102.0)
    assert clock.now() == pytest.approx(20.0)
    assert clock.base_seconds(20.0) == pytest.approx(2.0)
    assert clock.time_scale == 10.0


def test_a_scaled_clock_takes_the_wall_clock_by_default() -> None:
    clock = ScaledClock(1.0)
    first = clock.now()
    assert 0 <= first <= clock.now() < 5


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_must_be_a_positive_number(scale: float) -> None:
    with pytest.raises(ClockError, match="time_scale"):
        ScaledClock(scale)


@given(st.lists(st.floats(min_value=0, max_value=1e9)))
def test_virtual_time_is_where_it_was_put(times: list[float]) -> None:
    clock = VirtualClock()
    for when in sorted(times):
        clock.advance_to(when)
        assert clock.now() == when


@pytest.mark.parametrize("when", [4.999, -1.0, math.nan])
def test_virtual_time_does_not_go_back(when: float) -> None:
    clock = VirtualClock(start=5.0)
    with pytest.raises(ClockError, match="only goes forward"):
        clock.advance_to(when)
    assert clock.now() == 5.0


def test_all_clocks_fit_the_protocol() -> None:
    clocks: list[Clock] = [WallClock(), ScaledClock(2.0), VirtualClock()]
    assert all(isinstance(clock.now(), float) for clock in clocks)
