"""Wilson's interval and the requests that it takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.intervals import wilson
from loadgen.search.estimate import least_requests


def test_known_intervals() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I, method 3
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10_000), st.data())
def test_the_interval_holds_the_share_and_mirrors(counted: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, counted))
    low, high = wilson(good, counted)
    assert 0 <= low <= good / counted <= high <= 1
    mirrored = wilson(counted - good, counted)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-9)


@given(st.floats(0.01, 0.9999))
def test_least_requests_are_just_enough(target: float) -> None:
    enough = least_requests(target)
    assert wilson(enough, enough)[0] >= target - 1e-9
    assert enough == 1 or wilson(enough - 1, enough - 1)[0] < target


def test_least_requests() -> None:
    assert [least_requests(target) for target in (0.5, 0.9, 0.95, 0.99, 1.0)] == [4, 35, 73, 381, 1]
