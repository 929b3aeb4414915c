"""Data sets that begin again."""

import itertools

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.workload.cycle import Cycled
from tests.loadgen.workload.listed import Listed, at, prompt


def take(workload: Listed, count: int) -> list[tuple[str, float | None]]:
    conversations = Cycled(workload).conversations(np.random.default_rng(0))
    return [(prompt(found), found.arrival_s) for found in itertools.islice(conversations, count)]


def test_a_data_set_without_times_just_repeats() -> None:
    assert take(at(None, None), 5) == [("0", None), ("1", None), ("0", None), ("1", None), ("0", None)]


def test_times_go_on_at_the_mean_gap() -> None:
    assert take(at(0.0, 1.0, 4.0), 7) == [
        ("0", 0.0),
        ("1", 1.0),
        ("2", 4.0),
        ("0", 6.0),
        ("1", 7.0),
        ("2", 10.0),
        ("0", 12.0),
    ]


def test_a_cut_out_of_a_longer_recording_does_not_wait_for_its_own_beginning_again() -> None:
    assert [at_s for _, at_s in take(at(100.0, 101.0, 104.0), 5)] == [100.0, 101.0, 104.0, 106.0, 107.0]


def test_one_conversation_repeats_at_its_own_time() -> None:
    assert take(at(2.0), 3) == [("0", 2.0), ("0", 4.0), ("0", 6.0)]


def test_nothing_cannot_be_repeated() -> None:
    with pytest.raises(UsageError, match="no conversation"):
        take(Listed(()), 1)


def test_times_that_stand_still_cannot_be_repeated() -> None:
    for time_s in (0.0, 5.0):
        with pytest.raises(UsageError, match="cannot be cycled"):
            take(at(time_s, time_s), 3)
