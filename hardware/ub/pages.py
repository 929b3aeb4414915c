"""Pages of a mapping: touching them before they are needed, and letting go of those that are not needed any more.

The first touch of a shared-memory page costs more than copying it. A segment with reserved memory is touched once by
its creator, which allocates the memory, and mapped in full by each attaching process, which only fills page tables; the
memory of any other segment comes with the first write to each page. Letting go is the opposite of touching: the memory
stays allocated, but leaves this process's page tables until the next access.
"""

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hardware.errors import UbFullError
from hardware.ub.region import PAGE, round_up
from hardware.units import format_bytes

_STAT_BLOCK = 512  # unit of st_blocks
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it
_libc = ctypes.CDLL(None, use_errno=True)  # a foreign call lets go of the interpreter's lock, mmap.madvise does not
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def reserve_file(fd: int, nbytes: int, name: str) -> None:
    """Set the file's length and allocate its memory.

    Without this a full shared-memory directory would cause a bus error at some later write.

    Raises: UbFullError if the directory has no space.
    Effects: the file has `nbytes` zero bytes.
    """
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            raise
        where = os.fstatvfs(fd)
        raise _no_room(name, nbytes, where.f_bavail * where.f_frsize) from error


def promise_file(fd: int, nbytes: int, path: Path) -> None:
    """Set the file's length only; each page of memory is allocated by the first write to it.

    Raises: UbFullError if the directory has no space for this file and for the unallocated part of the files in it.
    Effects: the file has `nbytes` zero bytes, without memory.
    """
    where = os.fstatvfs(fd)
    if where.f_blocks:  # otherwise its size has no limit
        room = where.f_bavail * where.f_frsize - sum(map(_unallocated_bytes, path.parent.iterdir()))
        if nbytes > room:
            raise _no_room(str(path), nbytes, max(0, room))
    os.ftruncate(fd, nbytes)


def is_allocated(fd: int) -> bool:
    """Whether all of a file has memory."""
    status = os.fstat(fd)
    return status.st_blocks * _STAT_BLOCK >= status.st_size


def _unallocated_bytes(path: Path) -> int:
    try:
        status = path.lstat()
    except FileNotFoundError:  # removed since it was listed
        return 0
    return max(0, status.st_size - status.st_blocks * _STAT_BLOCK) if stat.S_ISREG(status.st_mode) else 0


def _no_room(name: str, nbytes: int, free: int) -> UbFullError:
    return UbFullError(
        f"{name} needs {format_bytes(nbytes)}, its directory has {format_bytes(free)}; "
        "request less UB memory or enlarge the directory (in a container: --shm-size, or a memory-backed volume)"
    )


def populate(mapping: mmap.mmap) -> bool:
    """Maps every page now, without changing any byte.

    Returns: whether the kernel did it in one call; otherwise every page was read once.
    Effects: the process's page tables are filled.
    """
    address = np.frombuffer(mapping, np.uint8).ctypes.data
    if _libc.madvise(address, len(mapping), _MADV_POPULATE_WRITE) == 0:
        return True
    code = ctypes.get_errno()
    if code != errno.EINVAL:
        raise OSError(code, os.strerror(code))
    read_every_page(mapping)
    return False


def read_every_page(mapping: mmap.mmap) -> int:
    """Reads one byte of every page: what `populate` does on a kernel that cannot.

    Returns: pages read.
    Effects: the process's page tables are filled for reading.
    """
    touched = np.frombuffer(mapping, np.uint8)[::PAGE]
    touched.max()
    return len(touched)


def let_go(views: Iterable[memoryview]) -> int:
    """Takes pages of shared mappings out of this process's page tables; their content stays, and can be read as before.

    Memory that is not shared with a file is passed over: there the same request would lose the content.

    Args:
        views: contiguous; the pages at their ends go, too.
    Returns: bytes let go.
    Effects: this process's resident memory shrinks; these pages are small ones here from now on.
    """
    gone = 0
    shared = _shared_mappings()
    for start, end in _page_runs(views):
        for first, behind in shared:
            low, high = max(start, first), min(end, behind)
            if low < high:
                _libc.madvise(low, high - low, mmap.MADV_NOHUGEPAGE)  # an access to a neighbour would bring them back
                gone += high - low if _libc.madvise(low, high - low, mmap.MADV_DONTNEED) == 0 else 0
    return gone


def _page_runs(views: Iterable[memoryview]) -> list[tuple[int, int]]:
    """Addresses of whole pages around the views, neighbours joined."""
    runs: list[tuple[int, int]] = []
    for view in sorted((np.frombuffer(view, np.uint8) for view in views), key=lambda one: one.ctypes.data):
        start = view.ctypes.data - view.ctypes.data % PAGE
        end = start + round_up(view.ctypes.data - start + len(view), PAGE)
        if runs and start <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(end, runs[-1][1]))
        else:
            runs.append((start, end))
    return runs


def _shared_mappings() -> list[tuple[int, int]]:
    """Addresses of this process's mappings that are shared with a file."""
    found = []
    with open("/proc/self/maps", "rb") as file:
        for line in file:
            where, modes = line.split(maxsplit=2)[:2]
            if modes.endswith(b"s"):
                start, _, end = where.partition(b"-")
                found.append((int(start, 16), int(end, 16)))
    return found
