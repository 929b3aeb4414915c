"""A server that pauses for a second, fully measured by an open loop.

Fifty requests per second are due, so about fifty fall into the pause, each waiting for the rest of it. A generator
that sends the next request only after the last response, or that counts from the moment of the actual send, sees one
slow request. Responses have one token, so the pause cannot fall behind the first one.
"""

from collections.abc import Iterator

import pytest

from loadgen.driver.health import percentile
from loadgen.record import RequestOutcome
from loadgen.selftest.ceiling import BlastServer, start_blast_server
from tests.loadgen.driver.driving import Run, drive_settings, scheduled

pytestmark = pytest.mark.real_time

RATE = 50.0
RUN_S = 2.0
STALL_AT_S = 0.4
STALL_S = 1.0
SLOW_S = 0.2
"""Far above the server's normal time, far below the pause."""


@pytest.fixture
def server() -> Iterator[BlastServer]:
    """A new server for each run: the pause is counted from its first request."""
    with start_blast_server("stall", tokens_per_s=1000, stall_at_s=STALL_AT_S, stall_for_s=STALL_S) as started:
        yield started


def test_an_open_loop_sees_the_whole_stall(server: BlastServer) -> None:
    run = Run()
    run.go(drive_settings(server), scheduled((number / RATE for number in range(int(RATE * RUN_S))), output_tokens=1))
    assert {record.outcome for record in run.records} == {RequestOutcome.OK}
    found = sorted(record.chunks()[0] - record.intended_s for record in run.records)
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
