"""Pages: allocated in advance, mapped in advance."""

import ctypes
import errno
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hardware.errors import UbFullError
from hardware.ub import pages
from hardware.ub.pages import is_allocated, let_go, populate, promise_file, read_every_page, reserve_file
from hardware.ub.region import PAGE
from hardware.units import MIB
from tests.hardware.ub.resident import resident_bytes

SIZE = 16 * MIB


def open_mapping(path: Path, size: int = SIZE) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    reserve_file(fd, size, str(path))
    mapping = mmap.mmap(fd, size)
    os.close(fd)
    return mapping


@pytest.mark.parametrize("touch", [populate, read_every_page])
def test_touched_pages_do_not_fault_again(shm: Path, touch: Callable[[mmap.mmap], object]) -> None:
    mapping = open_mapping(shm / "file")
    touch(mapping)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert np.frombuffer(mapping, np.uint8)[::PAGE].max() == 0
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < SIZE // PAGE // 10


def test_a_kernel_that_cannot_populate_reads_instead(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MADV_POPULATE_WRITE", 9999)
    assert not populate(open_mapping(shm / "file", 4 * PAGE))


def test_a_kernel_that_fails_to_populate_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_address: int, _nbytes: int, _advice: int) -> int:
        ctypes.set_errno(errno.ENOMEM)
        return -1

    monkeypatch.setattr(pages._libc, "madvise", failing)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        populate(mmap.mmap(-1, PAGE))


def test_reserving_takes_the_memory_and_touching_changes_nothing(shm: Path) -> None:
    open_mapping(shm / "file")
    status = os.stat(shm / "file")
    assert status.st_size == SIZE
    assert status.st_blocks * 512 >= SIZE
    mapping = open_mapping(shm / "small", 4 * PAGE)
    mapping[:] = bytes(range(256)) * (4 * PAGE // 256)
    populate(mapping)
    assert read_every_page(mapping) == 4
    assert mapping[:] == bytes(range(256)) * (4 * PAGE // 256)


def test_a_directory_without_room_is_an_error_and_no_bus_error(shm: Path) -> None:
    where = os.statvfs(shm)
    if where.f_blocks == 0:
        pytest.skip("this shared memory has no limit")
    fd = os.open(shm / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(UbFullError, match="enlarge the directory"):
        reserve_file(fd, 2 * where.f_blocks * where.f_frsize, "file")
    with pytest.raises(OSError, match="Invalid"):
        reserve_file(fd, 0, "file")
    os.close(fd)


def test_a_promise_takes_no_memory_and_counts_what_other_files_were_promised(shm: Path) -> None:
    where = os.statvfs(shm)
    if where.f_blocks == 0:
        pytest.skip("this shared memory has no limit")
    most = where.f_blocks * where.f_frsize * 2 // 3
    first, second = (os.open(shm / name, os.O_RDWR | os.O_CREAT) for name in ("first", "second"))
    promise_file(first, SIZE, shm / "first")
    status = os.fstat(first)
    assert (status.st_size, status.st_blocks) == (SIZE, 0)
    assert not is_allocated(first)
    os.truncate(shm / "first", most)
    with pytest.raises(UbFullError, match="enlarge the directory"):
        promise_file(second, most, shm / "second")
    assert os.fstat(second).st_size == 0
    reserve_file(second, PAGE, "second")
    assert is_allocated(second)
    os.close(first)
    os.close(second)


def test_pages_that_are_let_go_leave_the_page_tables_and_keep_their_content(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(64 * PAGE)
        view = memoryview(mmap.mmap(file.fileno(), 64 * PAGE))
    view[:] = bytes([7]) * len(view)
    assert resident_bytes(view) == 64 * PAGE
    parts = [view[8 * PAGE + 5 : 16 * PAGE], view[16 * PAGE : 20 * PAGE], view[30 * PAGE + 1 : 30 * PAGE + 2]]
    assert let_go(parts) == 13 * PAGE
    assert resident_bytes(view) == 51 * PAGE
    assert bytes(view) == bytes([7]) * len(view)
    view = memoryview(mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE))
    view[:] = bytes([7]) * len(view)
    assert let_go([view]) == 0
    assert bytes(view) == bytes([7]) * len(view)
