"""Real worker processes against a real server: sent requests, their times and workers, and the end of a run."""

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from loadgen.driver.fleet import Fleet
from loadgen.driver.messages import DriveSettings, Mode
from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, LoadJob, Turn
from loadgen.record import RequestOutcome
from loadgen.selftest.ceiling import BlastServer, start_blast_server
from tests.loadgen.driver.driving import Run, dialogue, drive_settings, endpoint, scheduled, unscheduled

pytestmark = pytest.mark.real_time


@pytest.fixture(scope="module")
def server() -> Iterator[BlastServer]:
    """20 ms to the first token, then 200 tokens/s."""
    with start_blast_server("paced", tokens_per_s=200, ttft_s=0.02) as started:
        yield started


def test_open_loop_sends_every_job_at_its_time_from_both_workers(server: BlastServer) -> None:
    run = Run()
    report = run.go(drive_settings(server, workers=2), scheduled(n * 0.01 for n in range(60)))
    assert Counter(record.outcome for record in run.records) == {RequestOutcome.OK: 60}
    assert sorted(record.index for record in run.records) == list(range(60))
    assert Counter(record.worker for record in run.records) == {0: 30, 1: 30}
    for record in run.records:
        assert record.intended_s == record.released_s == record.index * 0.01
        assert record.started_s is not None
        assert record.intended_s <= record.started_s < record.intended_s + 1
        assert len(record.chunks()) == 5
    assert not report.interrupted
    assert report.problems == []
    assert (report.jobs, report.requests) == (60, 60)
    assert [health.sent for health in report.workers] == [30, 30]
    assert report.duration_s == pytest.approx(max(record.ended_s or 0 for record in run.records))
    assert 0.59 <= report.sending_ended_s <= report.duration_s
    assert abs(report.started_at_unix + time.monotonic() - report.t0 - time.time()) < 1
    assert len(report.clocks) >= 2
    last = run.progress[-1]
    assert (last.sent, last.finished, last.running, last.outcomes) == (60, 60, 0, {RequestOutcome.OK: 60})
    assert last.tokens >= 300
    assert last.ttft_s is not None
    assert last.tpot_s is not None
    assert last.lateness_p99_s is not None


def test_closed_loop_keeps_its_concurrency_over_two_workers(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, Mode.CLOSED, concurrency=5, workers=2), unscheduled(60))
    assert Counter(record.outcome for record in run.records) == {RequestOutcome.OK: 60}
    assert run.peak() == 5
    assert all(record.intended_s == record.released_s for record in run.records)
    begun_at_once = [record.worker for record in run.records if record.intended_s == 0.0]
    assert Counter(begun_at_once) == {0: 3, 1: 2}


def test_closed_loop_opens_its_slots_over_the_ramp(server: BlastServer) -> None:
    run = Run()
    ramp = drive_settings(server, Mode.CLOSED, concurrency=4, concurrency_ramp_s=0.8, duration_s=1.0, drain_s=5.0)
    run.go(ramp, unscheduled(output_tokens=2))
    open_at_300_ms = [r for r in run.records if (r.started_s or 9.0) <= 0.35 <= (r.ended_s or 0.0)]
    assert len(open_at_300_ms) <= 2
    assert run.peak() == 4


def test_duration_ends_an_endless_source_and_open_requests_drain(server: BlastServer) -> None:
    run = Run()
    endless = scheduled((n * 0.08 for n in itertools.count()), output_tokens=40)
    report = run.go(drive_settings(server, duration_s=2.0, drain_s=60.0), endless)
    assert sorted(record.index for record in run.records) == list(range(25))
    outcomes = Counter(record.outcome for record in run.records)
    assert outcomes[RequestOutcome.OK] >= 20, (
        "all, unless the machine pauses and what is due then cannot be sent in time"
    )
    assert outcomes.keys() <= {RequestOutcome.OK, RequestOutcome.UNFINISHED}
    assert report.sending_ended_s < 2.0 < report.duration_s
    assert not report.interrupted
    assert run.progress[-1].draining


def test_after_the_drain_time_open_requests_are_cut_and_keep_what_came(server: BlastServer) -> None:
    run = Run()
    report = run.go(drive_settings(server, duration_s=0.3, drain_s=1.0), scheduled([0.0, 0.1], output_tokens=4000))
    assert [record.outcome for record in run.records] == [RequestOutcome.UNFINISHED] * 2
    assert all(len(record.chunks()) > 5 for record in run.records)
    assert 0.3 <= report.duration_s < 15  # 1 s after the last request left; their answers would take 20 s


def test_the_cap_holds_back_and_the_waiting_is_told_apart(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, concurrency=2), scheduled([0.0] * 6, output_tokens=20))
    assert run.peak() == 2
    waited = sorted(record.released_s - record.intended_s for record in run.records)
    assert waited[:2] == [0.0, 0.0]
    assert waited[-1] > 0.2  # two rounds of 20 + 19 x 5 ms are in front of it
    assert max(progress.waiting for progress in run.progress) >= 2


def test_what_the_cap_held_back_to_the_end_is_no_secret(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, concurrency=1, duration_s=0.4), scheduled([0.0, 0.1, 0.2], output_tokens=200))
    done, *held_back = sorted(run.records, key=lambda record: record.index)
    assert done.outcome is RequestOutcome.OK
    assert [record.outcome for record in held_back] == [RequestOutcome.UNFINISHED] * 2
    assert [record.intended_s for record in held_back] == [0.1, 0.2]
    assert all(record.started_s is None and record.error for record in held_back)


def test_a_session_stays_on_its_worker_and_thinks_between_turns(server: BlastServer) -> None:
    run = Run()
    jobs = [dialogue(index, 3, due_s=0.0, think_s=0.1) for index in range(4)]
    run.go(drive_settings(server, workers=2, keep_body=True, keep_text=True), jobs)
    assert Counter(record.index for record in run.records) == dict.fromkeys(range(4), 3)
    for index in range(4):
        turns = sorted((r for r in run.records if r.index == index), key=lambda record: record.turn)
        assert len({record.worker for record in turns}) == 1
        for before, after in itertools.pairwise(turns):
            assert before.ended_s is not None
            assert after.intended_s == pytest.approx(before.ended_s + 0.1)
            asked, heard = json.loads(before.body or b""), before.text or ""
            assert heard
            assert json.loads(after.body or b"")["prompt"].startswith(asked["prompt"] + heard)


def test_a_conversation_holds_its_slot_in_a_closed_loop_while_it_thinks(server: BlastServer) -> None:
    run = Run()
    jobs = [dialogue(index, 2, due_s=None, think_s=0.2) for index in range(2)]
    run.go(drive_settings(server, Mode.CLOSED, concurrency=1), jobs)
    assert [(record.index, record.turn) for record in run.records] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_duration_ends_thinking_silently(server: BlastServer) -> None:
    run = Run()
    report = run.go(drive_settings(server, duration_s=0.4), [dialogue(0, 2, think_s=30.0)])
    assert [(record.turn, record.outcome) for record in run.records] == [(0, RequestOutcome.OK)]
    assert report.duration_s < 25


def test_after_a_failure_only_turns_without_history_follow() -> None:
    settings = DriveSettings(endpoint=endpoint(BlastServer("http://127.0.0.1:1", 1, 0, "m")), drain_s=5.0)
    run = Run()
    run.go(settings, [dialogue(0, 3), dialogue(1, 3, history=False)])
    assert {record.outcome for record in run.records} == {RequestOutcome.CONNECTION}
    assert Counter(record.index for record in run.records) == {0: 1, 1: 3}


def test_an_unreachable_server_is_not_hammered_by_a_closed_loop() -> None:
    dead = endpoint(BlastServer("http://127.0.0.1:1", 1, 0, "m"))
    run = Run()
    run.go(DriveSettings(endpoint=dead, mode=Mode.CLOSED, concurrency=2, duration_s=0.5), unscheduled())
    assert 2 <= len(run.records) <= 12


def test_stop_lets_open_requests_finish(server: BlastServer) -> None:
    run = Run()
    run.at_progress = lambda progress: run.stop.set() if progress.now_s > 0.3 else None
    report = run.go(drive_settings(server, Mode.CLOSED, concurrency=4, workers=2), unscheduled(output_tokens=30))
    assert report.interrupted
    assert report.problems == []
    assert {record.outcome for record in run.records} == {RequestOutcome.OK}
    assert len(report.workers) == 2


def test_a_second_stop_cuts_at_once(server: BlastServer) -> None:
    run = Run()

    def interfere(progress: object) -> None:
        if run.stop.is_set():
            run.cut.set()
        if len(run.progress) > 3:
            run.stop.set()

    run.at_progress = interfere
    report = run.go(drive_settings(server, Mode.CLOSED, concurrency=2), unscheduled(output_tokens=10_000))
    assert report.interrupted
    assert report.duration_s < 60
    assert [record.outcome for record in run.records] == [RequestOutcome.UNFINISHED] * 2
    assert all(record.chunk_times for record in run.records)


def test_runs_without_requests(server: BlastServer) -> None:
    run = Run()
    run.stop.set()
    report = run.go(drive_settings(server), scheduled([0.0]))
    assert report.interrupted
    assert run.records == []
    assert report.workers == []

    run = Run()
    report = run.go(drive_settings(server, workers=2), [])
    assert (report.jobs, report.requests, run.records) == (0, 0, [])
    assert not report.interrupted


def test_jobs_that_cannot_be_sent_raise_before_the_start(server: BlastServer) -> None:
    def broken() -> Iterator[LoadJob]:
        yield from scheduled([0.0])
        raise TraceFormatError("trace.jsonl:2: not JSON")

    with pytest.raises(TraceFormatError, match=r"trace\.jsonl:2"):
        Run().go(drive_settings(server), broken())

    turns = [Turn(prompt=[1, 2], output_tokens=1), Turn(prompt=[3], output_tokens=1)]
    messages = LoadJob(index=0, due_s=0.0, conversation=Conversation(turns=turns))
    chat = DriveSettings(endpoint=endpoint(server, backend="openai-chat"))
    with pytest.raises(UsageError, match="--backend openai"):
        Run().go(chat, [messages])


def test_jobs_that_break_off_later_leave_what_was_measured(server: BlastServer) -> None:
    begun = threading.Event()

    def broken() -> Iterator[LoadJob]:
        yield from scheduled([0.0, 0.1, 2.5])
        begun.wait(60)
        raise TraceFormatError("trace.jsonl:4: not JSON")

    run = Run(at_progress=lambda progress: begun.set() if progress.finished else None)
    report = run.go(drive_settings(server), broken())
    assert Counter(record.outcome for record in run.records) == {RequestOutcome.OK: 3}
    assert report.interrupted
    assert "trace.jsonl:4" in report.problems[0]


def test_an_error_of_a_callback_ends_everything(server: BlastServer) -> None:
    def full(_: object) -> None:
        raise OSError("disk full")

    fleet = Fleet(drive_settings(server, Mode.CLOSED, concurrency=1, workers=1))
    with pytest.raises(OSError, match="disk full"):
        fleet.run(unscheduled(), on_records=full, on_progress=lambda _: None)
