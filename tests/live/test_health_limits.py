"""Conversion of `[health]` to an instance's limits, in its own time."""

from dataclasses import replace
from pathlib import Path

from serving.config.health import HealthConfig
from serving.instance.live.instance import idle_period_s, report_period_s, step_limits
from serving.values.health import StepLimits
from tests.live.harness import small_config


def test_a_simulated_device_that_tells_rarely_still_tells_often_enough() -> None:
    health = HealthConfig(link_period_s=0.25, link_misses=10)
    assert health.silence_s == 2.5
    assert report_period_s(health, None) == 0.25
    assert report_period_s(health, 0.05) == 0.05
    assert report_period_s(health, 30.0) == 0.625, "four reports within the limit"
    assert idle_period_s(health, None) == 0.5
    assert idle_period_s(replace(health, link_misses=2), None) == 0.25
    assert idle_period_s(health, 0.05) is None


def test_fast_simulated_time_makes_limits_longer_and_slow_time_does_not_make_them_shorter() -> None:
    config = small_config(Path(), health={"step_stall_s": 2.0, "step_factor": 3.0}, engine={"stall_timeout_s": 20.0})
    assert step_limits(config, 1.0) == StepLimits(2.0, 3.0, 20.0)
    assert step_limits(config, 10.0) == StepLimits(20.0, 3.0, 200.0)
    assert step_limits(config, 0.1) == StepLimits(2.0, 3.0, 20.0)
