"""Clocks: real and scaled."""

import math

import pytest

from hardware.clock import ScaledClock, WallClock
from hardware.errors import ClockError
from tests.fakes.clock import ManualClock


def test_the_wall_clock_never_goes_back() -> None:
    clock = WallClock()
    readings = [clock.now() for _ in range(1000)]
    assert readings == sorted(readings)
    assert readings[-1] > 0


def test_a_scaled_clock_runs_faster_by_its_scale() -> None:
    base = ManualClock(100.0)
    clock = ScaledClock(10.0, base)
    assert clock.now() == 0.0
    base.seconds = 102.0
    assert clock.now() == pytest.approx(20.0)
    assert clock.time_scale == 10.0
    usual = ScaledClock(1.0)
    assert 0 <= usual.now() <= usual.now(), "by the wall clock"


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_must_be_a_positive_number(scale: float) -> None:
    with pytest.raises(ClockError, match="time_scale"):
        ScaledClock(scale)
