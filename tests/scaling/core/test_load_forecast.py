"""Level, trend and noise of a rate."""

import random

import pytest

from serving.scaling.core.load_forecast import BIN_S, LEVEL_S, TREND_S, LoadForecast, gain_of


def fed(rates: list[float], seconds: float = 2.0) -> LoadForecast:
    forecast = LoadForecast()
    for rate in rates:
        forecast.add(rate * seconds, seconds)
    return forecast


def test_a_steady_rate_is_known_at_once_and_without_noise() -> None:
    forecast = fed([5.0] * 100)
    assert forecast.level == pytest.approx(5.0)
    assert forecast.steady == pytest.approx(5.0)
    assert forecast.trend == pytest.approx(0.0)
    assert max(forecast.noise, forecast.noise_over(10.0)) < 1e-9
    assert forecast.ahead(1000.0) == pytest.approx(5.0)


def test_short_looks_are_taken_together() -> None:
    forecast = LoadForecast()
    forecast.add(10.0, BIN_S / 2)
    assert forecast.level == 0.0
    forecast.add(0.0, BIN_S / 2)
    assert forecast.level == pytest.approx(10.0 / BIN_S)


def test_a_slope_is_seen_and_followed_ahead() -> None:
    forecast = fed([1.0 + 0.01 * 2.0 * n for n in range(1500)])
    assert forecast.trend == pytest.approx(0.01, rel=0.05)
    assert forecast.level == pytest.approx(31.0, rel=0.02)
    assert forecast.ahead(100.0) == pytest.approx(32.0, rel=0.02)
    assert forecast.ahead(10 * TREND_S) == forecast.ahead(TREND_S)


def test_a_rate_that_rises_for_a_minute_is_followed_ahead_and_its_end_is_seen() -> None:
    steps = [2.0] * 100 + [2.0 + 0.08 * n for n in range(50)]
    assert fed(steps).ahead(35.0) == pytest.approx(steps[-1] + 35 * 0.04, rel=0.06)
    assert fed(steps).level < 4.5, "the slow level alone would be a minute late"
    assert fed([*steps, *[5.92] * 200]).ahead(35.0) == pytest.approx(5.92, rel=0.1)


def test_chance_is_no_slope() -> None:
    draw = random.Random(1)
    forecast, ahead = LoadForecast(), []
    for _ in range(1800):
        forecast.add(sum(draw.random() < 0.05 for _ in range(200)), 2.0)
        ahead.append(forecast.ahead(35.0))
    calm = sorted(ahead[100:])
    assert calm[len(calm) // 50] > 3.5, "of a rate of 5"
    assert calm[-len(calm) // 50] < 6.5


def test_a_falling_rate_is_never_negative_ahead() -> None:
    forecast = fed([max(0.0, 20.0 - 0.02 * 2.0 * n) for n in range(550)])
    assert forecast.trend < 0
    assert forecast.ahead(TREND_S) == 0.0
    assert fed([50.0] * 200 + [0.0] * 300).level >= 0.0


@pytest.mark.parametrize("rate", [2.0, 20.0])
def test_the_noise_of_independent_events_is_known(rate: float) -> None:
    draw = random.Random(3)
    counts = [sum(draw.random() < rate / 1000 for _ in range(2000)) / 2.0 for _ in range(1000)]
    forecast = fed(counts)
    assert forecast.noise == pytest.approx((rate / (2 * LEVEL_S)) ** 0.5, rel=0.3)
    assert forecast.noise_over(10.0) == pytest.approx((rate / 10.0) ** 0.5, rel=0.3)
    assert forecast.noise_over(0.0) == forecast.noise_over(BIN_S)


def test_gains_begin_as_a_plain_mean() -> None:
    assert gain_of(2.0, 60.0, 2.0) == 1.0
    assert gain_of(2.0, 60.0, 4.0) == 0.5
    assert gain_of(2.0, 60.0, 1e6) == gain_of(2.0, 60.0, 0.0) == pytest.approx(2 / 60, rel=0.02)
