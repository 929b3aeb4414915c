"""Mapping other processes' segments once, and unmapping those of dead ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from hardware.errors import UbMissingError
from hardware.ub import Attachments, UbSegment
from hardware.units import KIB


def test_a_segment_is_mapped_once(shm: Path) -> None:
    others = Attachments()
    with UbSegment.create(shm / "ub-a", 64 * KIB) as own:
        region = own.allocate(4, owner="a")
        own.view(region)[:] = b"abcd"
        first = others.get(own.path)
        assert others.get(str(own.path)) is first
        assert bytes(first.read(region.offset, 4, region.generation)) == b"abcd"
        others.forget(own.path)
        others.forget(own.path)
        assert len(others) == 0
        assert others.get(own.path) is not first
        others.close()
        own.remove()
    with pytest.raises(UbMissingError):
        others.get(shm / "ub-a")


def test_segments_of_dead_processes_are_let_go(shm: Path) -> None:
    others = Attachments()
    sleeper = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        with UbSegment.create(shm / "ub-dead", 64 * KIB, owner_pid=sleeper.pid):
            others.get(shm / "ub-dead")
            others.get(shm / "ub-dead")
            assert len(others) == 1
    finally:
        sleeper.kill()
        sleeper.communicate()
    with UbSegment.create(shm / "ub-live", 64 * KIB):
        others.get(shm / "ub-live")
    assert len(others) == 1
    others.close()
