"""Whenever and however it ends, nothing stays; what a killed launcher leaves goes at the next start."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.server import STOP_S, Server, wait_for
from tests.e2e.topology import small

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> Path:
    return small(tmp_path, checkpoint, prefill=1, decode=1)


@pytest.mark.parametrize("moment", ["starting Ray", "deploying"])
def test_interrupted_during_start(config: Path, moment: str) -> None:
    # While Ray itself starts, an interrupt waits for it: a half-started Ray could not be ended.
    server = Server(config)
    try:
        server.launch()
        wait_for(lambda: moment in server.out, moment)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))  # as one of Ray's processes could, before the gateway is there
        took = server.interrupt()
        server.assert_nothing_left()
        assert server.process.returncode == 0
        assert took < 2 * STOP_S
        assert server.err == ""
    finally:
        server.end()


def serving(server: Server) -> list[str]:
    """What is left, without two agents of Ray's that look for their dead control service for a minute."""
    agents = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
    return [title for title in server.processes().values() if title not in agents]


def test_a_killed_launchers_segments_go_at_the_next_start(config: Path) -> None:
    first = Server(config)
    try:
        first.launch()
        first.wait_ready()
        left = first.segments()
        assert len(left) == 2, "prefill and decode have one each"
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait(30)
        wait_for(lambda: not serving(first), "all that serves has ended", 60, first.processes)
        assert all(segment.exists() for segment in left), "nobody was left to remove them"
        with Server(config) as second:
            assert not any(segment.exists() for segment in left)
            assert len(second.segments()) == 2
            second.process.terminate()  # SIGTERM, as service managers send
            assert second.process.wait(STOP_S) == 0
            second.wait_ended()
            second.assert_nothing_left()
    finally:
        first.end()
    assert not any(segment.exists() for segment in left)
