"""Scenes that `tests/e2e` plays with a live system come to the same in virtual time: here what they come to."""

from tests.virtual.core.live_scenes import burst, group_resized, rank_lost
from tests.virtual.core.outcome import Seen


def test_a_lost_rank_fails_nothing_and_its_streams_are_computed_again() -> None:
    assert rank_lost(4, 300) == Seen(4, 0, 2, 1200)


def test_a_group_that_is_resized_interrupts_nothing() -> None:
    assert group_resized([600] * 6, [300] * 6) == Seen(12, 0, 0, 5400)


def test_a_burst_wakes_all_instances_which_sleep_afterwards() -> None:
    outcome, decided = burst(40, 600)
    assert outcome == Seen(40, 0, 0, 24_000)
    assert decided == [("wake", 3), ("zero", 0)]
