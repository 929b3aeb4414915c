"""An interrupted start leaves no files or processes, and removes those of a killed system."""

import os
import secrets
import signal
import socket
from pathlib import Path

import pytest

from serving.cluster.nodes import SEGMENT_PREFIX
from tests.e2e.server import PATIENCE_S, SHARED_MEMORY, STOP_S, Server, wait_for
from tests.e2e.topology import small

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> Path:
    return small(tmp_path, checkpoint, prefill=1, decode=1)


def interrupted_during_start(config: Path, moment: str, within_s: float) -> None:
    """Start, and interrupt when this phase is announced."""
    server = Server(config)
    try:
        server.launch()
        wait_for(lambda: moment in server.out, moment)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", server.port))  # like one of Ray's processes could, before the gateway starts
        took = server.interrupt()
        server.assert_nothing_left()
        assert server.process.returncode == 0
        assert took < within_s
        assert server.err == ""
    finally:
        server.end()


@pytest.mark.nightly("tests/e2e/shipped/test_unclean_end.py::test_the_next_start_removes_what_a_killed_system_leaves")
def test_interrupted_while_ray_starts(config: Path) -> None:
    """An interrupt waits for Ray, since a half-started Ray could not be stopped; so this takes as long as a start."""
    interrupted_during_start(config, "checks, imports", PATIENCE_S)


def test_the_next_start_removes_what_a_killed_system_leaves(server: Server, config: Path) -> None:
    """The launcher's reaper was killed, too. The next start is interrupted once it has started to deploy.

    The last replicas to end may have removed the memory of the first. A segment unknown to all of them remains.
    """
    (reaper,) = (pid for pid, title in server.processes().items() if "reaper.py" in title)
    server.process.send_signal(signal.SIGSTOP)  # it would start another one
    os.kill(reaper, signal.SIGKILL)
    left = server.kill_launcher()
    assert len(left) == 3, "one for each replica"
    wait_for(lambda: not server.processes(), "all has ended", 60, server.processes)
    half_made = SHARED_MEMORY / f"{SEGMENT_PREFIX}{secrets.token_hex(8)}"
    half_made.touch()
    interrupted_during_start(config, "virtual NPUs", 2 * STOP_S)
    assert not any(segment.exists() for segment in (*left, half_made))
