"""How many requests a run is said to have: those of the plan, not those that a flag asked for."""

from collections.abc import Iterator

import pytest

from loadgen.cli.schedule import Schedule
from loadgen.plan import Conversation, LoadJob, Turn


def jobs(turns: list[int], *, warmups: int = 0, every_s: float | None = None) -> Iterator[LoadJob]:
    """Jobs with so many turns each."""
    for index, count in enumerate(turns):
        conversation = Conversation(turns=[Turn(prompt="p", output_tokens=1)] * count)
        due_s = None if every_s is None else index * every_s
        yield LoadJob(index=index, conversation=conversation, due_s=due_s, warmup=index < warmups)


@pytest.mark.parametrize(
    ("turns", "warmups", "count", "seen"),
    [
        ([1] * 4, 0, 4, [4, 4, 4, 4, 4]),
        ([1] * 4, 0, 5, [5, 5, 5, 5, 4]),  # the data set ends before
        ([1] * 6, 2, 6, [6] * 7),  # of four, behind two warm-ups
        ([3] * 4, 0, 4, [4, 12, 12, 12, 12]),
        ([1, 3, 2], 0, 3, [3, 3, 6, 6]),
        ([2, 2], 0, None, [None, None, 4]),
        ([], 0, 3, [0]),
    ],
)
def test_what_is_planned_gets_exact_as_jobs_are_drawn(
    turns: list[int], warmups: int, count: int | None, seen: list[int | None]
) -> None:
    schedule = Schedule(jobs(turns, warmups=warmups), count)
    told = [schedule.requests]
    for _ in schedule:
        told.append(schedule.requests)
    told[-1 if turns else 0] = schedule.requests  # the end was asked for, too
    assert told == seen
    assert schedule.missing == (0 if count is None else count - len(turns))
    assert schedule.measured == len(turns) - warmups


def test_nothing_is_missed_before_the_end_was_seen() -> None:
    schedule = Schedule(jobs([1] * 9), 12)
    next(iter(schedule))
    assert (schedule.missing, schedule.requests) == (0, 12)


def test_the_rate_is_that_of_the_measured_part() -> None:
    schedule = Schedule(jobs([1] * 5, warmups=2, every_s=0.5), 5)
    assert schedule.offered_per_s is None
    assert len([*schedule]) == 5
    assert schedule.offered_per_s == 2.0
