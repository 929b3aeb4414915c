"""Simulated time against real time."""

import pytest

from serving.instance.live.timed_moves import CATCH_UP_S, Pace


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """The current time."""
        return self.now


def ended(pace: Pace) -> float:
    """End time of the last step."""
    return pace._end


def test_steps_follow_each_other_without_drift() -> None:
    hands = Hands()
    pace = Pace(2.0, hands)
    pace.stop()  # waits end immediately; the test moves the time
    hands.now = 200.0
    pace.begin()
    pace.end(1.0)
    assert ended(pace) == 200.5
    hands.now = 200.5 + CATCH_UP_S / 2  # the engine's own work
    pace.begin()
    pace.end(1.0)
    assert ended(pace) == 201.0
    hands.now = 205.0  # idle
    pace.begin()
    pace.end(1.0)
    assert ended(pace) == 205.5
    assert pace.late_steps == 0


def test_steps_that_are_over_before_their_results_are_counted() -> None:
    hands = Hands()
    pace = Pace(1.0, hands)
    pace.begin()
    hands.now += 1.0
    pace.end(0.5)
    assert (pace.steps, pace.late_steps) == (1, 1)


@pytest.mark.real_time
def test_a_wait_can_be_called_off() -> None:
    pace = Pace(1.0)
    pace.stop()
    begun = pace.real_now()
    pace.wait(begun, 60.0)
    assert pace.real_now() - begun < 1.0
