"""Dispatch and combine over the expert-parallel degree."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import load_device
from hardware.cost.exchange import combine_line, dispatch_line, fit_line

TABLE = load_device("ascend-910c").experts
DISPATCH, COMBINE = dispatch_line(TABLE), combine_line(TABLE)


def test_measured_degrees_are_met_exactly_and_the_line_goes_on_below_and_is_flat_above() -> None:
    for degree, dispatch, combine in zip(TABLE.degrees, TABLE.dispatch_s, TABLE.combine_s, strict=True):
        assert DISPATCH.seconds(degree) == pytest.approx(dispatch)
        assert COMBINE.seconds(degree) == pytest.approx(combine)
    assert DISPATCH.seconds(320) == DISPATCH.seconds(256) == DISPATCH.seconds(768)
    assert COMBINE.seconds(320) == COMBINE.seconds(256)
    assert DISPATCH.seconds(8) - DISPATCH.seconds(4) == pytest.approx(DISPATCH.slope_s)
    assert DISPATCH.seconds(1) > 0


@given(st.floats(8, 256))
def test_between_two_degrees_it_stays_between_them(degree: float) -> None:
    for line in (DISPATCH, COMBINE):
        for low, high in pairwise(line.degrees):
            if low <= degree <= high:
                ends = line.seconds(low), line.seconds(high)
                assert min(ends) - 5e-6 <= line.seconds(degree) <= max(ends) + 5e-6


def test_a_line_is_found_again() -> None:
    line = fit_line((8, 16, 32, 64), (10.0, 12.0, 14.0, 14.0), 32)
    assert (line.at_first_s, line.slope_s) == pytest.approx((10.0, 2.0))
    assert line.deviations_s == pytest.approx((0, 0, 0, 0))
    line = fit_line((32,), (100e-6,), 128)
    assert line.seconds(8) == line.seconds(256) == pytest.approx(100e-6)
