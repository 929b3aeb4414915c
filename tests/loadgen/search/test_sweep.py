"""Values of a sweep."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.search.sweep import concurrencies, explicit, geometric, rates


def test_given_values_are_sorted_and_single() -> None:
    assert explicit([4, 1, 2.5, 4]) == [1.0, 2.5, 4.0]
    assert explicit([8, 1], whole=True) == [1.0, 8.0]


@pytest.mark.parametrize(
    ("values", "says"),
    [([], "empty"), ([0.0], "not a positive"), ([-1.0], "not a positive"), ([math.inf], "not a positive")],
)
def test_values_that_are_none(values: list[float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        explicit(values)


def test_half_a_request_at_once() -> None:
    with pytest.raises(UsageError, match="whole number"):
        explicit([1.5], whole=True)


def test_rates_between_measured_ends() -> None:
    assert rates(1.0, 10.0, 4) == [1.0, 2.26, 5.09, 11.5]
    assert rates(1.0, 0.5, 1) == [1.15]  # a server that is no faster with more at once


def test_concurrencies_beyond_the_knee() -> None:
    assert concurrencies(2.0, 4.0, 6) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]  # 8 at once keep it busy
    assert concurrencies(2.0, 4.0, 6, largest=10) == [1.0, 2.0, 3.0, 4.0, 6.0, 10.0]
    assert concurrencies(2.0, 4.0, 6, largest=1) == [1.0]
    assert concurrencies(0.1, 1.0, 6) == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("ends", [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)])
def test_ends_that_were_not_measured(ends: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="give --sweep-values"):
        rates(*ends, 5)
    with pytest.raises(UsageError, match="give --sweep-values"):
        concurrencies(*ends, 5)


@given(st.floats(0.01, 100), st.floats(1.1, 1000), st.integers(2, 30))
def test_a_geometric_row_ascends_between_its_ends(low: float, ratio: float, points: int) -> None:
    values = geometric(low, low * ratio, points)
    assert values == sorted(set(values))
    assert values[0] == pytest.approx(low, rel=6e-3)
    assert values[-1] == pytest.approx(low * ratio, rel=6e-3)
    assert len(values) <= points
