"""A server that stands still for two seconds, seen by an open loop and by those who would not notice.

Fifty requests per second are due, so about a hundred fall into the stall, each waiting for what is left of it: two
seconds, 1.98 s, 1.96 s ... A generator that sends the next request only when the last one has been answered, or that
counts from the moment it got round to sending, sees one slow request.
Answers have one token, so that the stall cannot fall behind the first one.
"""

from collections.abc import Iterator

import pytest

from loadgen.driver.health import percentile
from loadgen.driver.settings import Mode
from loadgen.record import RequestOutcome, RequestRecord
from loadgen.selftest.process import BlastServer, start_blast_server
from tests.loadgen.driver.driving import Run, drive_settings, scheduled, unscheduled

pytestmark = pytest.mark.real_time

RATE = 50.0
RUN_S = 4.0
STALL_AT_S = 1.0
STALL_S = 2.0
SLOW_S = 0.3
"""Far above what the server needs when it does not stand still, far below the stall."""


@pytest.fixture
def server() -> Iterator[BlastServer]:
    """A new one for each run: the stall is counted from its first request."""
    with start_blast_server("stall", tokens_per_s=1000, stall_at_s=STALL_AT_S, stall_for_s=STALL_S) as started:
        yield started


def ttft_s(records: list[RequestRecord], *, from_intended: bool) -> list[float]:
    """Ascending."""
    assert {record.outcome for record in records} == {RequestOutcome.OK}
    begin = [record.intended_s if from_intended else record.started_s or 0.0 for record in records]
    return sorted(record.chunks()[0] - since for record, since in zip(records, begin, strict=True))


def schedule() -> Iterator[float]:
    return (number / RATE for number in range(int(RATE * RUN_S)))


def test_an_open_loop_sees_the_whole_stall(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server), scheduled(schedule(), output_tokens=1))
    found = ttft_s(run.records, from_intended=True)
    assert len(found) == RATE * RUN_S
    assert percentile(found, 99) == pytest.approx(STALL_S, abs=0.3)
    begins_s = STALL_AT_S + 0.2  # at the latest: the server counts from when the first request reached it
    in_stall = [record for record in run.records if begins_s < record.intended_s < STALL_AT_S + STALL_S - 0.2]
    for record in in_stall:  # each waits for the rest of the stall: latency falls by a second per second
        left_s = STALL_AT_S + STALL_S - record.intended_s
        assert record.chunks()[0] - record.intended_s == pytest.approx(left_s, abs=0.3)
    slow = sum(wait > SLOW_S for wait in found)
    assert slow == pytest.approx(RATE * (STALL_S - SLOW_S), rel=0.2)
    assert percentile(found, 50) < SLOW_S


def test_counting_from_the_actual_send_under_a_cap_would_hide_it(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, concurrency=1), scheduled(schedule(), output_tokens=1))
    from_sent = ttft_s(run.records, from_intended=False)
    assert sum(wait > STALL_S / 2 for wait in from_sent) == 1
    assert percentile(from_sent, 95) < SLOW_S  # the machine, too, may pause now and then
    from_intended = ttft_s(run.records, from_intended=True)
    assert sum(wait > SLOW_S for wait in from_intended) >= 0.8 * RATE * (STALL_S - SLOW_S)
    assert percentile(from_intended, 95) > STALL_S / 2


def test_a_closed_loop_hides_it_by_its_nature(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server, Mode.CLOSED, concurrency=1, duration_s=RUN_S), unscheduled(output_tokens=1))
    found = ttft_s(run.records, from_intended=True)
    assert sum(wait > STALL_S / 2 for wait in found) == 1
    assert percentile(found, 95) < SLOW_S
