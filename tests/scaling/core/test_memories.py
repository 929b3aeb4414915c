"""Averages, windows and stabilization: the remembered past, and for how long."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.core.load_forecast import FastRate, GrowthRate, LoadForecast, Rise, ShareAverage, StockAverage
from serving.scaling.core.pool_planner import StabilizationWindow
from serving.scaling.core.totals import Recent


def test_a_stock_has_a_mean_now_and_a_steady_one() -> None:
    stock = StockAverage(60.0)
    for _ in range(600):
        stock.add(10.0, 1.0)
    assert stock.mean == pytest.approx(10.0)
    assert stock.steady == pytest.approx(10.0)
    assert stock.noise(100.0) == pytest.approx(0.0)
    for _ in range(60):
        stock.add(20.0, 1.0)
    assert stock.mean == pytest.approx(16.3, abs=0.1)
    assert stock.steady < 12.0


def test_the_scatter_of_a_stock_counts_by_how_long_it_lasts() -> None:
    stock, draw = StockAverage(60.0), random.Random(1)
    for _ in range(5000):
        stock.add(draw.gauss(100.0, 10.0), 1.0)
    assert stock.variance == pytest.approx(100.0, rel=0.3)
    assert stock.noise(0.0) == 0.0
    assert stock.noise(60.0) == pytest.approx((stock.variance / 2) ** 0.5)
    assert stock.noise(1e9) == pytest.approx(stock.variance**0.5)


def test_a_share_forgets_and_may_be_unknown() -> None:
    share = ShareAverage(100.0)
    assert share.value(0.7) == 0.7
    share.add(0.0, 10.0, 1.0)
    share.add(10.0, 10.0, 1000.0)
    assert share.value(0.7) == pytest.approx(1.0, abs=1e-3)


def test_recent_keeps_a_window_of_whole_looks() -> None:
    recent = Recent(10.0)
    assert recent.rate == 0.0
    for amount in (100.0, 1.0, 1.0, 1.0):
        recent.add(amount, 5.0)
    assert (recent.total, recent.seconds, recent.rate) == (2.0, 10.0, 0.2)
    recent.add(7.0, 60.0)
    assert (recent.total, recent.seconds) == (7.0, 60.0)
    recent.clear()
    assert (recent.total, recent.seconds, recent.rate) == (0.0, 0.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1.0, 2.0, 7.0])), min_size=1, max_size=40))
def test_recent_is_the_sum_of_its_window(parts: list[tuple[int, float]]) -> None:
    recent = Recent(10.0)
    for amount, seconds in parts:
        recent.add(amount, seconds)
    keep = 1
    while keep < len(parts) and sum(seconds for _, seconds in parts[-keep:]) < 10.0:
        keep += 1
    assert recent.total == sum(amount for amount, _ in parts[-keep:])


def test_a_burst_shows_the_sooner_the_larger_it_is() -> None:
    draw = random.Random(2)

    def seconds_until_seen(factor: int) -> int:
        course, fast = LoadForecast(), FastRate(3.5)
        for second in range(700):
            count = sum(draw.random() < 0.01 * (factor if second >= 600 else 1) for _ in range(1000))
            course.add(count, 1.0)
            fast.add(count, 1.0)
            assert fast.rate(course) >= fast.surely(course)
            if fast.surely(course) > 13.0:
                assert second >= 600
                return second - 600
        return 1000

    assert seconds_until_seen(8) <= 1
    assert seconds_until_seen(4) <= 4
    assert seconds_until_seen(2) <= 20
    assert seconds_until_seen(1) == 1000


def test_patience_remembers_the_most_that_was_needed() -> None:
    patience = StabilizationWindow(60.0)
    assert patience.highest == 0
    assert not patience.over(0.0)
    patience.add(0.0, 5)
    patience.add(10.0, 3)
    assert (patience.highest, patience.over(59.0), patience.over(60.0)) == (5, False, True)
    patience.add(61.0, 2)
    assert patience.highest == 3
    patience.add(62.0, 4)
    assert patience.highest == 4


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=40))
def test_patience_is_the_maximum_of_its_window(steps: list[tuple[int, int]]) -> None:
    patience, now, past = StabilizationWindow(50.0), 0.0, []
    for gap, need in steps:
        now += gap
        past.append((now, need))
        patience.add(now, need)
        assert patience.highest == max(n for at, n in past if at >= now - 50.0)


def scattered(rate: float, seconds: int = 900) -> LoadForecast:
    """A constant rate with Poisson counts."""
    course, draw = LoadForecast(), random.Random(2)
    for _ in range(seconds):
        course.add(sum(draw.random() < rate / 100 for _ in range(100)), 1.0)
    return course


def test_a_climb_is_told_from_scatter_the_sooner_the_steeper() -> None:
    arrivals = scattered(4.0)
    seen: dict[float, int] = {}
    for slope in (0.0, 2.0, 10.0):
        climb = GrowthRate(3.0)
        for second in range(1, 41):
            climb.add(100.0 + slope * second, 1.0)
            if climb.ahead(60.0, arrivals).surely > 0:
                seen.setdefault(slope, second)
    assert seen == {2.0: 21, 10.0: 6}
    surely, likely = climb.ahead(10.0, arrivals)
    assert likely == pytest.approx(100.0)
    assert 0.0 < surely < likely


def test_a_climb_is_not_believed_for_longer_than_it_was_seen() -> None:
    climb = GrowthRate(0.0)
    for second in range(11):
        climb.add(2.0 * second, 1.0)
    assert climb.ahead(60.0, LoadForecast()) == Rise(20.0, 20.0)
    assert climb.ahead(5.0, LoadForecast()) == Rise(10.0, 10.0)


def test_a_stock_that_falls_or_was_never_seen_does_not_climb() -> None:
    climb = GrowthRate(3.0)
    assert climb.ahead(60.0, LoadForecast()) == Rise(0.0, 0.0)
    for second in range(60):
        climb.add(100.0 - second, 1.0)
    assert climb.ahead(60.0, LoadForecast()) == Rise(0.0, 0.0)


def test_a_climb_forgets_what_is_older_than_its_longest_window() -> None:
    climb = GrowthRate(0.0)
    climb.add(0.0, 1.0)
    for _ in range(60):
        climb.add(100.0, 1.0)
    assert climb.ahead(60.0, LoadForecast()) == Rise(0.0, 0.0)
