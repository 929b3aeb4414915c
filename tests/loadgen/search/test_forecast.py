"""Durations of searches, before anything is sent."""

import math

import pytest

from loadgen.search.forecast import expected_s, longest_s
from loadgen.search.saturation import Probe, SearchSettings

SETTINGS = SearchSettings(first=10.0, smallest=1.0, least_requests=60, least_duration_s=5.0)


def seconds(probe: Probe) -> float:
    return probe.requests / probe.value + 1.0


def test_a_clear_search_costs_its_probes() -> None:
    """10 holds, 20 does not, then 14.1 and so on: each as long as its requests take at its rate."""
    one_by_one = expected_s(SearchSettings(first=10.0, resolution=1.0, least_duration_s=5.0), seconds, 15.0)
    assert one_by_one == pytest.approx((60 / 10 + 1) + (100 / 20 + 1))
    assert expected_s(SETTINGS, seconds, 15.0) > one_by_one


@pytest.mark.parametrize("limit", [0.0, 0.7, 3.0, 10.0, 15.0, 77.0, math.inf])
def test_no_search_is_longer_than_the_longest(limit: float) -> None:
    most = longest_s(SETTINGS, seconds)
    assert expected_s(SETTINGS, seconds, limit) <= most
    assert most <= SETTINGS.most_probes * (4 * 60 + 1)


def test_fewer_probes_are_sooner_done() -> None:
    few = SearchSettings(first=10.0, smallest=1.0, least_duration_s=5.0, most_probes=3)
    assert longest_s(few, seconds) < longest_s(SETTINGS, seconds)


def test_whole_numbers() -> None:
    settings = SearchSettings(first=8, smallest=1.0, largest=64, whole=True)
    assert 0 < expected_s(settings, seconds, 12) <= longest_s(settings, seconds)
