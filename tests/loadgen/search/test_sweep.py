"""Values of a sweep."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.metrics.distribution import wilson
from loadgen.search.saturation import Probe, SearchSettings, expected_s, least_requests, longest_s
from loadgen.search.sweep import concurrencies, explicit, geometric, rates


def test_given_values_are_sorted_single_and_possible() -> None:
    assert explicit([4, 1, 2.5, 4]) == [1.0, 2.5, 4.0]
    assert explicit([8, 1], whole=True) == [1.0, 8.0]
    with pytest.raises(UsageError, match="whole number"):
        explicit([1.5], whole=True)


@pytest.mark.parametrize(
    ("values", "says"),
    [([], "empty"), ([0.0], "not a positive"), ([-1.0], "not a positive"), ([math.inf], "not a positive")],
)
def test_values_that_are_none(values: list[float], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        explicit(values)


def test_rates_and_concurrencies_between_measured_ends() -> None:
    assert rates(1.0, 10.0, 4) == [1.0, 2.26, 5.09, 11.5]
    assert rates(1.0, 0.5, 1) == [1.15]  # a server that is no faster with more at once
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


def test_known_intervals_and_what_they_take() -> None:
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, table I, method 3
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert [least_requests(target) for target in (0.5, 0.9, 0.95, 0.99, 1.0)] == [4, 35, 73, 381, 1]


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


SETTINGS = SearchSettings(first=10.0, smallest=1.0, least_requests=60, least_duration_s=5.0)


def seconds(probe: Probe) -> float:
    return probe.requests / probe.value + 1.0


def test_how_long_a_search_takes() -> None:
    """10 holds, 20 does not, then 14.1 and so on: each takes as long as its requests at its rate."""
    one_by_one = expected_s(SearchSettings(first=10.0, resolution=1.0, least_duration_s=5.0), seconds, 15.0)
    assert one_by_one == pytest.approx((60 / 10 + 1) + (100 / 20 + 1))
    assert expected_s(SETTINGS, seconds, 15.0) > one_by_one
    few = SearchSettings(first=10.0, smallest=1.0, least_duration_s=5.0, most_probes=3)
    assert longest_s(few, seconds) < longest_s(SETTINGS, seconds)
    settings = SearchSettings(first=8, smallest=1.0, largest=64, whole=True)
    assert 0 < expected_s(settings, seconds, 12) <= longest_s(settings, seconds)


@pytest.mark.parametrize("limit", [0.0, 0.7, 3.0, 10.0, 15.0, 77.0, math.inf])
def test_no_search_is_longer_than_the_longest(limit: float) -> None:
    most = longest_s(SETTINGS, seconds)
    assert expected_s(SETTINGS, seconds, limit) <= most
    assert most <= SETTINGS.most_probes * (4 * 60 + 1)
