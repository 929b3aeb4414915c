"""A separate mapping for one large entry of a memory server's segment, which outlives the segment object.

A replica computes on such a mapping for hours. It is read-only (a stray write is a fault, not a wrong token) and stays
valid when the segment object is closed or the server dies; only its own bytes then stay in memory. Its address is
aligned so that huge pages of the file are huge pages of the process: a thousand page faults less per gigabyte at the
start, and fewer TLB misses afterwards.
"""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

from hardware.errors import HardwareError
from hardware.ub.file import open_file, read_header
from hardware.ub.layout import PAGE, round_up
from hardware.ub.leftover import keep
from serving.errors import PoolUnreachableError

HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # Linux 6.1; Python 3.11 has no name for it
_MAP_FIXED = 0x10
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_longlong,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class ExtentMap:
    """The bytes `[offset, offset + nbytes)` of a segment's file, mapped while `memory` or a part of it is referenced.

    A mapping to read keeps its bytes, with a descriptor, when the server has ended.

    Args:
        path: of the segment.
        writable: False = a write is a fault.
    Raises: PoolUnreachableError if there is no such segment, or it has no such bytes.
    """

    def __init__(self, path: str, offset: int, nbytes: int, *, writable: bool = False) -> None:
        first = offset - offset % PAGE
        self._length = round_up(offset + nbytes - first, PAGE)
        self._address, keeper = _map(path, first, self._length, offset + nbytes, writable)
        self._end = weakref.finalize(self, _unmap, self._address, self._length, keeper)
        self._end.atexit = False  # tensors may be used to the last moment; the kernel takes it back
        self._skip = offset - first
        self._nbytes = nbytes
        self._writable = writable

    @property
    def memory(self) -> memoryview:
        """The bytes; they keep the mapping alive."""
        span: Any = (ctypes.c_char * self._nbytes).from_address(self._address + self._skip)
        span.mapping = self
        view = memoryview(span).cast("B")
        return view if self._writable else view.toreadonly()

    def use_huge_pages(self) -> bool:
        """Ask the kernel to merge the file's pages of this range into huge pages, for all mappings. May take seconds.

        Returns: whether it did.
        """
        start = round_up(self._address, HUGE_PAGE)
        length = (self._address + self._length - start) // HUGE_PAGE * HUGE_PAGE
        return length > 0 and _libc.madvise(start, length, _MADV_COLLAPSE) == 0


def _map(path: str, first: int, length: int, end: int, writable: bool) -> tuple[int, int | None]:
    """Returns: the address, and a descriptor that keeps the bytes; none for a writer, which ends with the server."""
    try:
        fd = open_file(Path(path))
    except HardwareError as error:
        raise PoolUnreachableError(f"segment {path}: {error}") from error
    try:
        header = read_header(fd, Path(path))
        if header is None or first < 0 or end > os.fstat(fd).st_size or length <= 0:
            raise PoolUnreachableError(f"segment {path} has no {length} bytes at {first}")
        if not writable:
            keep(fd, first, length)
            if os.fstat(fd).st_nlink == 0:  # looked at behind `keep`, so that it is either seen or respected
                raise PoolUnreachableError(f"segment {path} was just removed")
        address = _map_aligned(fd, first, length, writable)
    except HardwareError as error:
        os.close(fd)
        raise PoolUnreachableError(f"segment {path}: {error}") from error
    except BaseException:
        os.close(fd)
        raise
    if writable:
        os.close(fd)
        return address, None
    return address, fd


def _unmap(address: int, length: int, keeper: int | None) -> None:
    _libc.munmap(address, length)
    if keeper is not None:
        os.close(keeper)


def _map_aligned(fd: int, first: int, length: int, writable: bool) -> int:
    """Map at an address with the same distance from a huge page's start as the offset in the file."""
    reserved = length + HUGE_PAGE
    start = _libc.mmap(None, reserved, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start == _FAILED:
        raise PoolUnreachableError(f"no {reserved} bytes left in this process's address space")
    address = start + (first - start) % HUGE_PAGE
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    if _libc.mmap(address, length, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, first) == _FAILED:
        code = ctypes.get_errno()
        _libc.munmap(start, reserved)
        raise PoolUnreachableError(f"a segment's bytes cannot be mapped ({os.strerror(code)})")
    _give_back(start, address)
    _give_back(address + length, start + reserved)
    return int(address)


def _give_back(start: int, end: int) -> None:
    if end > start:
        _libc.munmap(start, end - start)
