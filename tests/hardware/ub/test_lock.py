"""The lock: between processes, between threads, and never held by the dead."""

import os
import threading
import time
from pathlib import Path

import pytest

from hardware.errors import UbBusyError
from hardware.ub import UbSegment
from hardware.ub.file import locked
from tests.hardware.ub.processes import Processes


def test_a_lock_held_elsewhere_is_not_waited_for_for_ever(shm: Path, processes: Processes) -> None:
    with UbSegment.create(shm / "ub", 4096) as segment:
        pid, _ = processes.run("hold_lock", path=str(segment.path))
        fd = os.open(segment.path, os.O_RDWR)
        began = time.monotonic()
        with pytest.raises(UbBusyError, match=r"held by others for 0\.1 s"), locked(fd, "it", timeout_s=0.1):
            pytest.fail("the lock was given twice")
        assert time.monotonic() - began >= 0.1
        processes.kill(pid)
        with locked(fd, "it", timeout_s=0.0):
            pass  # the kernel dropped the dead process's lock
        os.close(fd)


def test_threads_exclude_each_other(shm: Path) -> None:
    path = shm / "file"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        for _ in range(50):
            with locked(fd, "file"):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    assert most == 1


def test_an_error_inside_gives_the_lock_back(shm: Path) -> None:
    path = shm / "file"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    with pytest.raises(KeyError), locked(fd, "file"):
        raise KeyError
    with locked(fd, "file", timeout_s=0.0):
        path.unlink()
    with locked(fd, "file", timeout_s=0.0):
        pass  # a file without a name can still be locked
    os.close(fd)
