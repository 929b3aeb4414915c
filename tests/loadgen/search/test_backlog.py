"""The backlog test: silent on servers in balance, loud on overloaded ones."""

import numpy as np
import pytest

from loadgen.search.backlog import LEAST_GROWTH, look_times, running_grows, trend
from tests.loadgen.search.simulated_server import Queue


def test_a_straight_line() -> None:
    times = np.linspace(10, 20, 101).tolist()
    line = trend(times, [3 + 2 * (time - 10) for time in times])
    assert line is not None
    assert line.slope_per_s == pytest.approx(2)
    assert line.lower_per_s == pytest.approx(2)
    assert line.growth == pytest.approx(20)
    assert line.start == pytest.approx(3)
    assert line.window_s == pytest.approx(10)
    assert line.is_significant


def test_a_level_line_and_a_falling_one() -> None:
    times = [float(time) for time in range(60)]
    for values in ([5.0] * 60, [60.0 - time for time in times]):
        line = trend(times, values)
        assert line is not None
        assert not line.is_significant
        assert running_grows(times, values, 1.0) == ""


def test_too_little_to_tell() -> None:
    assert trend([], []) is None
    assert trend([1.0] * 50, list(range(50))) is None
    assert trend(list(range(20)), list(range(20))) is None
    gap = [0.0] * 30 + [100.0]
    assert trend(gap, gap) is None
    assert running_grows([], [], 1.0) == ""


def test_a_small_rise_is_no_backlog() -> None:
    times = [float(time) for time in range(60)]
    barely = [LEAST_GROWTH * 0.9 * time / 59 for time in times]
    assert running_grows(times, barely, 0.01) == ""
    assert running_grows(times, [2 * value for value in barely], 0.01) != ""
    assert running_grows(times, [2 * value for value in barely], 100.0) == ""  # luck of 6000 arrivals


def test_what_is_said_of_a_backlog() -> None:
    times = np.linspace(0, 60, 121)
    text = running_grows(times.tolist(), (10 + 2 * times).tolist(), 20.0)
    assert text == "requests piled up by 2 a second at 20 a second offered (from 10 to 130 in 60 s)"


def alarms(load: float, requests: int, *, repeats: int = 60) -> float:
    """Share of runs of a queue at `load` times its capacity in which the test finds a backlog."""
    found = 0
    for seed in range(repeats):
        queue = Queue(0.1, seed=seed)
        rate = load * queue.capacity_per_s
        arrivals, waits = queue.run(rate, requests)
        found += bool(queue.grows(arrivals, waits, rate))
    return found / repeats


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("requests", [150, 600])
def test_a_server_in_balance_is_seldom_accused(load: float, requests: int) -> None:
    assert alarms(load, requests) <= 0.1


@pytest.mark.parametrize(("load", "requests", "least"), [(1.25, 200, 0.75), (1.5, 200, 0.95), (1.1, 1000, 0.75)])
def test_an_overloaded_server_is_found(load: float, requests: int, least: float) -> None:
    assert alarms(load, requests) >= least


def test_few_looks() -> None:
    assert look_times(60.0) == (15.0, 30.0, 60.0)
