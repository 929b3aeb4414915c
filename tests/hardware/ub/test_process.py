"""Process stamps: whether a process is alive."""

import os
from dataclasses import replace
from pathlib import Path

from hardware.ub import UbSegment
from hardware.ub.process import ProcessStamp
from tests.hardware.ub.processes import Processes


def test_who_is_alive() -> None:
    own = ProcessStamp.own()
    assert own.pid == os.getpid()
    assert own.is_alive()
    assert ProcessStamp.of(os.getpid()) == own
    assert not replace(own, start_ticks=own.start_ticks - 1).is_alive(), "its number was reused"
    assert replace(own, start_ticks=1, pid_namespace=own.pid_namespace + 1).is_alive(), "of another namespace"
    beyond = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    assert ProcessStamp.of(beyond) is None


def test_a_killed_process_is_dead_even_before_it_is_reaped(shm: Path, processes: Processes) -> None:
    UbSegment.create(shm / "ub", 4096).close()
    for reap in (True, False):
        pid, _ = processes.run("hold_lock", path=str(shm / "ub"))
        stamp = ProcessStamp.of(pid)
        assert stamp is not None
        assert stamp.is_alive()
        processes.kill(pid, reap=reap)
        assert not stamp.is_alive()
        assert ProcessStamp.of(pid) is None
