"""Conversations with branches against a real server: joins, stops, failures."""

import time
from collections.abc import Iterator

import pytest

from loadgen.driver.messages import DriveSettings, Mode
from loadgen.metrics.jobs import jobs_of
from loadgen.plan import Conversation, LoadJob, Turn
from loadgen.record import RequestOutcome
from loadgen.selftest.ceiling import BlastServer, start_blast_server
from loadgen.trace.jobs import with_npus
from tests.loadgen.driver.driving import NOWHERE, Run, drive_settings

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server() -> Iterator[BlastServer]:
    """20 ms to the first token, then 200 tokens/s."""
    with start_blast_server("paced", tokens_per_s=200, ttft_s=0.02) as started:
        yield started


def agent(index: int, *, last_think_s: float = 0.05, due_s: float | None = 0.0) -> LoadJob:
    """Turn 0 calls two branches: turns 1 and 2, and turn 3, which is slow. Turn 4 waits for all."""
    waits: list[tuple[list[int], float, int]] = [
        ([], 0.0, 3), ([0], 0.1, 3), ([], 0.0, 3), ([0], 0.0, 60), ([0, 2, 3], last_think_s, 3),
    ]  # fmt: skip
    turns = [
        Turn(prompt=f"turn {number}", output_tokens=tokens, think_s=think_s, waits_for=waits_for)
        for number, (waits_for, think_s, tokens) in enumerate(waits)
    ]
    return LoadJob(index=index, due_s=due_s, conversation=Conversation(turns=turns, history=False))


def test_branches_run_beside_each_other_and_join(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, workers=1), [agent(0), agent(1)])
    assert {record.outcome for record in run.records} == {RequestOutcome.OK}
    for index in (0, 1):
        turns = sorted((one for one in run.records if one.index == index), key=lambda one: one.turn)
        ends = [one.ended_s or 0.0 for one in turns]
        assert [one.intended_s for one in turns] == pytest.approx(
            [0.0, ends[0] + 0.1, ends[1], ends[0], max(ends[0], ends[2], ends[3]) + 0.05]
        )
        assert turns[3].started_s < ends[1] < ends[3]  # type: ignore[operator]
    jobs = with_npus(jobs_of(run.records), 2, 3.0)
    assert jobs is not None
    assert (jobs.jobs, jobs.completed, jobs.npu_s_per_job) == (2, 2, 3.0)
    assert jobs.time_p50_s is not None
    assert 0.3 < jobs.time_p50_s


def test_a_stop_ends_pauses_and_waits_but_not_open_responses(server: BlastServer) -> None:
    run = Run()
    run.at_progress = lambda progress: run.stop.set() if progress.sent >= 4 else None
    begun = time.monotonic()
    run.go(drive_settings(server, workers=1), [agent(0, last_think_s=3600)])
    assert time.monotonic() - begun < 60
    assert sorted(one.turn for one in run.records if one.outcome == RequestOutcome.OK) == [0, 1, 2, 3]
    jobs = jobs_of(run.records)
    assert jobs is not None
    assert (jobs.jobs, jobs.completed, jobs.time_p50_s) == (1, 0, None)


def test_a_conversation_holds_its_slot_until_its_last_branch_has_ended(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, Mode.CLOSED, concurrency=1, workers=1), [agent(n, due_s=None) for n in range(3)])
    assert len(run.records) == 15
    ends = [max(one.ended_s or 0.0 for one in run.records if one.index == index) for index in range(3)]
    starts = [min(one.started_s or 0.0 for one in run.records if one.index == index) for index in range(3)]
    assert starts[1] >= ends[0]
    assert starts[2] >= ends[1]


def test_turns_follow_failed_ones() -> None:
    run = Run()
    settings = DriveSettings(endpoint=NOWHERE, mode=Mode.OPEN, workers=1, drain_s=5.0)
    run.go(settings, [agent(0)])
    assert [one.outcome for one in run.records] == [RequestOutcome.CONNECTION] * 5


def test_no_turn_is_sent_after_the_end_of_the_run(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, workers=1, duration_s=0.08), [agent(0)])
    assert {one.turn for one in run.records} <= {0, 3}
