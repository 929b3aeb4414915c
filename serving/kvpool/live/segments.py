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
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardware.errors import HardwareError
from hardware.ub.file import open_file, read_header
from hardware.ub.layout import ENTRY, PAGE
from hardware.ub.process import ProcessStamp
from hardware.ub.region import RegionTable
from serving.errors import PoolUnreachableError
from serving.kvpool.live.extent_map import ExtentMap

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
    threading.Thread(target=_touch, args=(memory, mapped.dropped), name="kvpool-touch", daemon=True).start()
    return mapped


def _touch(memory: memoryview, dropped: threading.Event) -> None:
    """Fills page tables, which else happens at the first copy of each page and makes that one three times as long."""
    address = np.frombuffer(memory, np.uint8).ctypes.data
    for start in range(0, len(memory), _TOUCH_BYTES):
        length = min(_TOUCH_BYTES, len(memory) - start)
        if dropped.is_set() or _libc.madvise(address + start, length, _MADV_POPULATE_WRITE) != 0:
            return  # an older kernel: pages come when they are used
