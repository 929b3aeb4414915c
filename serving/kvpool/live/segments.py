"""The memory servers' UB segments that this process has mapped: each once, shared by all clients of the process.

Mapping one takes no time, regardless of its size: a thread without the interpreter's lock fills the page tables
afterwards, so that no token is delayed when a server joins. A segment is dropped when the pool does not name it any
more or its owner is dead. Bytes that are being copied at that moment stay valid memory; their checksum shows whether
they are right. Thread-safe.
"""

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardware.errors import HardwareError
from hardware.ub.file import keep, open_file, read_header
from hardware.ub.pages import is_allocated
from hardware.ub.process import ProcessStamp
from hardware.ub.region import ENTRY, PAGE, RegionTable, round_up
from serving.errors import PoolUnreachableError

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it
_TOUCH_BYTES = 16 << 20  # about 5 ms a piece: a dropped segment is not touched for long

_libc = ctypes.CDLL(None, use_errno=True)  # foreign calls let go of the interpreter's lock, the mmap module's do not
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Mapped:
    """One server's region.

    Args:
        memory: all of it, writable.
        base: start of the region in the segment's file; offsets in `Found` and `Grant` count from the file's start.
        generation: of the region.
        owner: the server's process.
        table: of the segment's regions, always current.
        dropped: set when the mapping is no longer needed.
    """

    path: str
    memory: memoryview
    base: int
    generation: int
    owner: ProcessStamp
    table: RegionTable
    dropped: threading.Event

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Bytes of one entry.

        Raises: PoolUnreachableError if they are not in the region: the server speaks of another segment.
        """
        start = offset - self.base
        if start < 0 or start + nbytes > len(self.memory):
            raise PoolUnreachableError(f"{nbytes} bytes at {offset} are not in {self.path}")
        return self.memory[start : start + nbytes]


class Segments:
    """Mapped segments by path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapped: dict[str, Mapped] = {}

    def get(self, path: str, generation: int) -> Mapped:
        """The region `generation` of the segment at `path`, mapped into this process on first use.

        Raises: PoolUnreachableError if there is no such segment, or the region was freed.
        """
        with self._lock:
            try:
                mapped = self._mapped.get(path)
                if mapped is not None and mapped.generation != generation:
                    self._drop(path)
                    mapped = None
                if mapped is None:
                    mapped = self._mapped[path] = _map(path, generation)
                mapped.table.require_live(generation, path)
                return mapped
            except HardwareError as error:
                self._drop(path)
                raise PoolUnreachableError(f"segment {path}: {error}") from error

    def keep(self, paths: Collection[str]) -> None:
        """Drop all other segments. Their memory is unmapped as soon as no copy uses it."""
        with self._lock:
            for path in [path for path in self._mapped if path not in paths]:
                self._drop(path)

    def drop_dead(self) -> None:
        """Drop segments whose owner is dead, like `keep`."""
        with self._lock:
            for path in [path for path, mapped in self._mapped.items() if not mapped.owner.is_alive()]:
                self._drop(path)

    def __len__(self) -> int:
        return len(self._mapped)

    def _drop(self, path: str) -> None:
        mapped = self._mapped.pop(path, None)
        if mapped is not None:
            mapped.dropped.set()


def _map(path: str, generation: int) -> Mapped:
    """Read header and region table without the segment's lock: the region was announced, so both are complete."""
    fd = open_file(Path(path))
    try:
        header = read_header(fd, Path(path))
        if header is None:
            raise PoolUnreachableError(f"segment {path} does not exist yet")
        reserved = is_allocated(fd)
        head = mmap.mmap(fd, header.data_start, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    entries = np.frombuffer(head, ENTRY, count=header.max_regions, offset=PAGE)
    table = RegionTable(entries, header.data_start, header.file_bytes)
    region = next((one for one in table.regions() if one.generation == generation), None)
    if region is None:
        raise PoolUnreachableError(f"segment {path} has no or no longer a region {generation}")
    memory = ExtentMap(path, region.offset, region.nbytes, writable=True).memory
    mapped = Mapped(path, memory, region.offset, generation, header.owner, table, threading.Event())
    if reserved:  # otherwise touching would allocate what nobody may need
        threading.Thread(target=_touch, args=(memory, mapped.dropped), name="kvpool-touch", daemon=True).start()
    return mapped


def _touch(memory: memoryview, dropped: threading.Event) -> None:
    """Fills page tables, which else happens at the first copy of each page and makes that one three times as long."""
    address = np.frombuffer(memory, np.uint8).ctypes.data
    for start in range(0, len(memory), _TOUCH_BYTES):
        length = min(_TOUCH_BYTES, len(memory) - start)
        if dropped.is_set() or _libc.madvise(address + start, length, _MADV_POPULATE_WRITE) != 0:
            return  # an older kernel: pages come when they are used


# A separate mapping for one large entry of a memory server's segment, which outlives the segment object.
#
# A replica computes on such a mapping for hours. It is read-only (a stray write is a fault, not a wrong token) and
# stays valid when the segment object is closed or the server dies; only its own bytes then stay in memory. Its address
# is aligned so that huge pages of the file are huge pages of the process: a thousand page faults less per gigabyte at
# the start, and fewer TLB misses afterwards.

HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # Linux 6.1; Python 3.11 has no name for it
_MAP_FIXED = 0x10
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value

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
        self._address, keeper = _map_extent(path, first, self._length, offset + nbytes, writable)
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


def _map_extent(path: str, first: int, length: int, end: int, writable: bool) -> tuple[int, int | None]:
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
