"""Distribution of jobs: bounded look-ahead, endless sources, proportion, the end, and errors."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from loadgen.driver.feeder import FIRST_JOBS, Feeder, _turns
from loadgen.driver.messages import Mode, NoMoreJobs, Prepare, Supply, ToWorker
from loadgen.driver.worker_process import WorkerProcess
from loadgen.plan import LoadJob
from tests.loadgen.driver.driving import scheduled, settings, unscheduled

pytestmark = pytest.mark.real_time


class Taker:
    """The feeder's side of a `WorkerProcess`, and a depth."""

    def __init__(self, depth: int) -> None:
        self.lost = ""
        self.depth = depth
        self.jobs: list[LoadJob] = []
        self.said: list[str] = []

    @property
    def room(self) -> int:
        return self.depth - len(self.jobs)

    def give(self, supply: Supply) -> bool:
        self.jobs += supply.jobs
        return True

    def send(self, message: ToWorker) -> bool:
        self.said.append(type(message).__name__)
        return True


def feeder(jobs: Iterator[LoadJob], takers: list[Taker], **fields: Any) -> Feeder:
    """A running feeder."""
    made = Feeder(jobs, settings(workers=len(takers), **fields), cast(list[WorkerProcess], takers))
    made.start()
    return made


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_endless_source_is_drawn_only_as_far_as_there_is_room() -> None:
    drawn = itertools.count()
    takers = [Taker(10), Taker(10)]

    def endless() -> Iterator[LoadJob]:
        for job in unscheduled():
            next(drawn)
            yield job

    feeding = feeder(endless(), takers, mode=Mode.CLOSED, concurrency=2)
    wait_for(lambda: feeding.prepared)
    time.sleep(0.05)
    assert [len(taker.jobs) for taker in takers] == [10, 10]
    assert next(drawn) <= 21
    assert takers[0].said == [Prepare.__name__]
    takers[1].depth = 15
    feeding.wake()
    wait_for(lambda: len(takers[1].jobs) == 15)
    assert len(takers[0].jobs) == 10
    feeding.stop()
    feeding.join(60)
    assert not feeding.is_alive()
    assert takers[0].said == [Prepare.__name__]


def test_the_run_may_begin_before_everything_is_drawn() -> None:
    begun = threading.Event()

    def slow_later() -> Iterator[LoadJob]:
        yield from unscheduled(FIRST_JOBS + 1)
        begun.wait(60)

    taker = Taker(10_000)
    feeding = feeder(slow_later(), [taker])
    wait_for(lambda: feeding.prepared)
    assert taker.said == [Prepare.__name__]
    begun.set()
    feeding.join(60)
    assert taker.said == [Prepare.__name__, NoMoreJobs.__name__]


def test_open_loop_deals_by_turns_and_ends_with_the_duration() -> None:
    takers = [Taker(1000), Taker(1000)]
    feeding = feeder(scheduled(number * 0.1 for number in itertools.count()), takers, duration_s=1.0)
    feeding.join(60)
    assert [job.index for job in takers[0].jobs] == [0, 2, 4, 6, 8]
    assert [job.index for job in takers[1].jobs] == [1, 3, 5, 7, 9]
    assert feeding.jobs == 10
    assert takers[0].said == [Prepare.__name__, NoMoreJobs.__name__]


def test_turns_follow_the_slots_well_mixed() -> None:
    turns = _turns(settings(workers=2, concurrency=3))
    assert sorted(turns) == [0, 0, 1]
    assert turns == [0, 1, 0]
    many = _turns(settings(workers=3, concurrency=1000))
    assert {worker: many.count(worker) for worker in range(3)} == {0: 64, 1: 64, 2: 64}


def test_a_lost_worker_gets_nothing_more_in_a_closed_loop() -> None:
    takers = [Taker(100), Taker(100)]
    takers[0].lost = "killed"
    feeding = feeder(unscheduled(20), takers, mode=Mode.CLOSED, concurrency=2)
    feeding.join(60)
    assert [len(taker.jobs) for taker in takers] == [0, 20]


def test_an_error_of_the_source_is_kept_and_ends_the_supply() -> None:
    def broken() -> Iterator[LoadJob]:
        yield from unscheduled(2)
        raise ValueError("line 3")

    taker = Taker(100)
    feeding = feeder(broken(), [taker])
    feeding.join(60)
    with pytest.raises(ValueError, match="line 3"):
        raise feeding.error or AssertionError
    assert len(taker.jobs) == 2
    assert taker.said == [Prepare.__name__, NoMoreJobs.__name__]
