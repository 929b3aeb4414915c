"""Jobs: contents, times and behaviours joined; bounds, warm-up, and independence of the three."""

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from loadgen.arrivals import ReplayedArrivals, Steady, Steps
from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, LoadJob, Turn
from loadgen.workload.lengths import lengths
from loadgen.workload.plan_jobs import Behaviours, plan_jobs
from loadgen.workload.sessions import Sessions
from tests.loadgen.workload.listed import at, prompt
from tests.loadgen.workload.whole_plan import WORK, whole_plan


def test_a_closed_loop_has_no_times_and_no_end_of_its_own() -> None:
    jobs = list(itertools.islice(plan_jobs(WORK, seed=1), 2000))
    assert [job.index for job in jobs] == list(range(2000))
    assert all(job.due_s is None and not job.warmup and job.behaviours == [] for job in jobs)


def test_count_and_duration_bound_the_measured_jobs_behind_the_warm_up() -> None:
    jobs = list(plan_jobs(WORK, seed=1, arrivals=Steady(10.0), warmups=3, count=5))
    assert [job.warmup for job in jobs] == [True] * 3 + [False] * 5
    assert [job.index for job in jobs] == list(range(8))
    due = [job.due_s for job in jobs if job.due_s is not None]
    assert len(due) == 8
    assert due == sorted(due)
    closed = list(plan_jobs(WORK, seed=1, warmups=3, count=5))
    assert [job.warmup for job in closed] == [True] * 3 + [False] * 5
    assert len(list(plan_jobs(WORK, seed=1, warmups=2, count=0))) == 2
    constant = Steady(4.0, math.inf)
    jobs = list(plan_jobs(WORK, seed=1, arrivals=constant, duration_s=2.0))
    assert [job.due_s for job in jobs] == [index / 4 for index in range(8)]
    warmed = list(plan_jobs(WORK, seed=1, arrivals=constant, warmups=4, duration_s=2.0))
    assert [job.due_s for job in warmed if not job.warmup] == [1 + index / 4 for index in range(8)]
    poisson = [job.due_s for job in plan_jobs(WORK, seed=3, arrivals=Steady(0.5), duration_s=20.0)]
    assert all(due is not None and due < 20 for due in poisson)
    assert len(list(plan_jobs(WORK, seed=1, arrivals=Steady(4.0, math.inf), count=3, duration_s=2.0))) == 3
    assert len(list(plan_jobs(WORK, seed=1, arrivals=Steady(4.0, math.inf), count=30, duration_s=2.0))) == 8
    assert len(list(plan_jobs(WORK, seed=1, arrivals=Steps(((5.0, 2.0),), math.inf), count=30))) == 10
    assert len(list(plan_jobs(at(None, None), seed=1, arrivals=Steady(4.0), count=30))) == 2


def test_a_replay_takes_the_times_of_its_window() -> None:
    times = [0.0, 0.1, 1 / 3, 7.7]
    assert [job.due_s for job in plan_jobs(at(*times), seed=1, arrivals=ReplayedArrivals())] == times
    jobs = list(plan_jobs(at(0.0, 5.0, 6.0, 9.0, 12.0), seed=1, arrivals=ReplayedArrivals(2.0, 5.0, 10.0)))
    assert [(prompt(job.conversation), job.due_s) for job in jobs] == [("1", 0.0), ("2", 0.5), ("3", 2.0)]
    assert [job.index for job in jobs] == [0, 1, 2]
    assert len(list(plan_jobs(EndlessTrace(), seed=1, arrivals=ReplayedArrivals(to_s=3.0)))) == 3


@dataclass(frozen=True)
class EndlessTrace:
    """A trace that must not be read beyond its window."""

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        turn = Turn(prompt="x", output_tokens=1)
        return (Conversation(turns=[turn], arrival_s=float(second)) for second in itertools.count())


def test_a_replay_needs_times_in_order() -> None:
    with pytest.raises(TraceFormatError, match="conversation 3"):
        list(plan_jobs(at(0.0, 2.0, 1.0), seed=1, arrivals=ReplayedArrivals()))
    with pytest.raises(UsageError, match="no times of its own"):
        list(plan_jobs(WORK, seed=1, arrivals=ReplayedArrivals()))


def test_contents_times_and_behaviours_do_not_disturb_each_other() -> None:
    def jobs(workload: Sessions = WORK, rate: float = 5.0, leaving: float = 0.0) -> list[LoadJob]:
        mix = Behaviours(disconnect_share=leaving)
        return list(plan_jobs(workload, seed=4, arrivals=Steady(rate), behaviours=mix, count=40))

    plain, faster, other = jobs(), jobs(rate=10.0), jobs(Sessions(WORK.source, lengths("3")))
    leaving = jobs(leaving=0.5)
    assert [job.conversation for job in plain] == [job.conversation for job in faster]
    assert [job.due_s for job in faster] == pytest.approx([(job.due_s or 0) / 2 for job in plain])
    assert [job.due_s for job in plain] == [job.due_s for job in other]
    assert [(job.due_s, job.conversation) for job in plain] == [(job.due_s, job.conversation) for job in leaving]
    assert 5 < sum(job.behaviour(0).conduct == "disconnect" for job in leaving) < 35

    one, other = (list(plan_jobs(WORK, seed=seed, arrivals=Steady(5.0), count=9)) for seed in (1, 2))
    assert {job.due_s for job in one}.isdisjoint(job.due_s for job in other)
    assert {prompt(job.conversation) for job in one}.isdisjoint(prompt(job.conversation) for job in other)


def test_another_process_makes_the_same_plan() -> None:
    code = """
import msgspec
from tests.loadgen.workload.whole_plan import whole_plan
print(msgspec.json.encode(whole_plan()).decode())
"""
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "3", "PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip().encode() == msgspec.json.encode(whole_plan())
