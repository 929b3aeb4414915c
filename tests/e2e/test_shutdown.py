"""Whenever and however it ends, nothing stays; what a killed launcher leaves goes at once, or at the next start."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.e2e.server import STOP_S, Server, wait_for
from tests.e2e.topology import small

pytestmark = pytest.mark.slow

GONE_S = 20.0
"""Ten seconds, and as many for a busy machine."""


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


def kill_launcher(server: Server) -> list[Path]:
    """Returns: the segments of what it served."""
    segments = server.segments()
    assert len(segments) == 2, "prefill and decode have one each"
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(30)
    return segments


def test_what_a_killed_launcher_leaves_is_removed(config: Path) -> None:
    """By the small process beside it, within seconds; if that was killed too, by the next start."""
    first = Server(config)
    try:
        first.launch()
        first.wait_ready()
        (reaper,) = (pid for pid, title in first.processes().items() if "reaper.py" in title)
        os.kill(reaper, signal.SIGKILL)
        left = kill_launcher(first)
        wait_for(lambda: not first.processes(), "all has ended", 60, first.processes)
        assert all(segment.exists() for segment in left), "nobody was left to remove them"
        with Server(config) as second:
            assert not any(segment.exists() for segment in left)
            left = kill_launcher(second)
            begun = time.monotonic()
            wait_for(lambda: not any(segment.exists() for segment in left), "its memory is free", 60)
            wait_for(lambda: not second.processes(), "all has ended", 60, second.processes)
            assert time.monotonic() - begun < GONE_S
            assert not second.segments()
    finally:
        first.end()
