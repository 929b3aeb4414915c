"""Memory of unlinked files: what is freed, and what remains because a process keeps it."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hardware.ub.file import free_leftovers, keep
from hardware.ub.region import PAGE
from tests.hardware.ub.processes import Processes

PAGES = 64


@pytest.fixture
def path(shm: Path) -> Path:
    """A file of shared memory, every byte of it 7."""
    path = shm / "file"
    path.write_bytes(b"\7" * PAGES * PAGE)
    return path


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    """Descriptor of the open file."""
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def pages_of(fd: int) -> set[int]:
    """Pages that still have their contents."""
    return {page for page in range(PAGES) if os.pread(fd, PAGE, page * PAGE) == b"\7" * PAGE}


def kept(path: Path, first: int, pages: int) -> int:
    """A descriptor that keeps some pages."""
    fd = os.open(path, os.O_RDONLY)
    keep(fd, first * PAGE, pages * PAGE)
    return fd


def test_what_somebody_keeps_stays(path: Path, fd: int) -> None:
    keepers = [kept(path, 62, 2), kept(path, 3, 2), kept(path, 4, 10), kept(path, 3, 1)]
    assert free_leftovers(fd) == (PAGES - 11 - 2) * PAGE
    assert pages_of(fd) == {*range(3, 14), 62, 63}
    assert os.fstat(fd).st_blocks * 512 == 13 * PAGE
    for keeper in keepers:
        os.close(keeper)
    assert free_leftovers(fd) == PAGES * PAGE
    assert pages_of(fd) == set()


def test_what_is_only_mapped_goes(path: Path, fd: int) -> None:
    keeper = kept(path, 8, 1)
    with mmap.mmap(fd, 0) as memory:
        free_leftovers(fd)
        assert memory[: 8 * PAGE] == bytes(8 * PAGE)
        assert pages_of(fd) == {8}
    os.close(keeper)


def test_another_process_keeps_until_it_dies(path: Path, fd: int, processes: Processes) -> None:
    keeper, answer = processes.run("keep_bytes", path=str(path), offset=5 * PAGE, nbytes=3 * PAGE)
    assert answer == {}
    path.unlink()
    free_leftovers(fd)
    assert pages_of(fd) == {5, 6, 7}
    processes.kill(keeper)
    free_leftovers(fd)
    assert pages_of(fd) == set()
