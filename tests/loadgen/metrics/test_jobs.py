"""Figures of jobs, the same live and virtual."""

import pytest

from loadgen.metrics.jobs import jobs_of
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.report.job_table import incomplete_lines, job_rows, miss_rows
from loadgen.trace.jobs import PauseMisses, TurnSeen, job_figures

SEEN = [
    TurnSeen(0, 2, 0.0, 2.0, True, 100, 0, 0, None),
    TurnSeen(0, 2, 12.0, 20.0, True, 200, 60, 100, 10.0),
    TurnSeen(1, 2, 5.0, 6.0, True, 50, 0, 0, None),
    TurnSeen(1, 2, 8.0, 9.0, False, 60, None, 50, 2.0),
    TurnSeen(2, 2, 7.0, 8.0, True, 50, 0, 0, None),  # its second turn never came
]


def test_only_whole_jobs_have_a_time() -> None:
    jobs = job_figures(SEEN, 80.0)
    assert jobs is not None
    assert (jobs.jobs, jobs.completed, jobs.time_p50_s, jobs.time_p95_s) == (3, 1, 20.0, 20.0)
    assert (jobs.computed_tokens_p50, jobs.computed_tokens_mean, jobs.npu_s_per_job) == (240.0, 240.0, 80.0)
    assert jobs.cached_share == 60 / 400
    assert jobs.pauses == [PauseMisses(pause="5 to 20 s", turns=1, repeated_tokens=100, missed_tokens=40)]
    assert (jobs.responses_p50_s, jobs.responses_p95_s) == (10.0, 10.0)
    shown = dict(job_rows(jobs) + miss_rows(jobs))
    assert shown["jobs completed"] == "1 of 3"
    assert shown["computed again, pauses 5 to 20 s"] == "40.0 % of 100 tokens, 1 turn"


def test_why_jobs_did_not_complete() -> None:
    late = [TurnSeen(3, 2, 1.0, None, False, None, None, 0, None, "a full queue"), SEEN[0]._replace(job=3, sent_s=2.0)]
    jobs = job_figures([*SEEN, *late], None)
    assert jobs is not None
    assert jobs.incomplete == {"the end of the run, before their last turn": 2, "a full queue": 1}
    assert incomplete_lines(jobs)[1] == "1 of 4 jobs did not complete, because of a full queue"


def test_single_requests_are_no_jobs() -> None:
    assert job_figures([TurnSeen(0, 1, 0.0, 1.0, True, 9, 0, 0, None)], None) is None
    assert job_figures([], None) is None


@pytest.mark.parametrize(
    ("pause_s", "name"), [(4.9, "below 5 s"), (5, "5 to 20 s"), (60, "1 to 5 min"), (1e5, "above 5 min")]
)
def test_classes_of_pauses(pause_s: float, name: str) -> None:
    jobs = job_figures([SEEN[0], SEEN[1]._replace(pause_s=pause_s)], None)
    assert jobs is not None
    assert [one.pause for one in jobs.pauses] == [name]


def test_records_of_a_run() -> None:
    def record(turn: int, **fields: object) -> RequestRecord:
        known: dict[str, object] = {"outcome": RequestOutcome.OK, "job_turns": 2, "block_tokens": 16}
        return RequestRecord(index=3, turn=turn, **known | fields)  # type: ignore[arg-type]

    first = record(0, ended_s=1.0, input_tokens=32, cached_tokens=0, hash_ids=[5, 6])
    second = record(1, intended_s=8.0, think_s=7.0, ended_s=9.0, input_tokens=40, cached_tokens=16, hash_ids=[5, 6, 9])
    jobs = jobs_of([second, first])
    assert jobs is not None
    assert jobs.time_p50_s == 9.0
    assert jobs.pauses == [PauseMisses(pause="5 to 20 s", turns=1, repeated_tokens=32, missed_tokens=16)]
    long = record(1, outcome=RequestOutcome.HTTP_ERROR, status=400, error="maximum context length is 4096 tokens")
    failed = jobs_of([first, long])
    assert failed is not None
    assert list(failed.incomplete) == ["a prompt longer than the model takes: lower --length-scale"]
    second.cached_tokens = None  # a server that does not report it
    unknown = jobs_of([first, second])
    assert unknown is not None
    assert (unknown.completed, unknown.computed_tokens_p50, unknown.pauses) == (1, None, [])
