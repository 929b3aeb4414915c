"""A node's UB segment: one file of shared memory that every process of the node maps by path.

    with UbSegment.create("/dev/shm/ub_n0", 256 * MIB) as segment:
        region = segment.allocate(nbytes, owner="prefill-0")
        segment.view(region)[:] = kv_bytes            # the holder writes
        ...                                           # a message carries (offset, nbytes, generation)
        kv = segment.read(offset, nbytes, generation) # anybody on the node reads
        segment.release(region)

The segment's lifetime is that of its owner process: the owner removes it on exit, and after a crash `remove_stale`
does at the next start. Python's own shared-memory class is not used, since its tracker unlinks the file when any one
process ends. Regions belong to processes; what a dead process held is given out again by the next `allocate`. A reader
that was still copying such a region finds out from its checksum.
"""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from hardware.errors import SpecError, UbBusyError, UbClosedError, UbCorruptError, UbRangeError
from hardware.ub import file as segment_file
from hardware.ub.file import SegmentHeader, locked
from hardware.ub.pages import is_allocated, populate
from hardware.ub.process import ProcessStamp
from hardware.ub.region import ENTRY, HEADER, PAGE, RegionTable, UbRegion, round_up
from hardware.units import Bytes, format_bytes

_T = TypeVar("_T")

MAX_REGIONS = 1024
"""Entries of the region table; 128 KiB of the file."""

_ATTEMPTS = 16  # in each attempt another process removed the file between our open and our lock


@dataclass(frozen=True, slots=True)
class _Mapped:
    """State that is dropped when the segment is closed: the memory and the tables in it."""

    memory: mmap.mmap
    next_generation: npt.NDArray[np.uint64]  # [1]
    table: RegionTable

    @classmethod
    def of(cls, fd: int, header: SegmentHeader) -> Self:
        memory = mmap.mmap(fd, header.file_bytes)
        if is_allocated(fd):  # otherwise touching would allocate what nobody may need
            populate(memory)
        counter = np.frombuffer(memory, HEADER, count=1)["next_generation"]
        entries = np.frombuffer(memory, ENTRY, count=header.max_regions, offset=PAGE)
        return cls(memory, counter, RegionTable(entries, header.data_start, header.file_bytes))


class UbSegment:
    """One process's mapping of a segment. Safe for threads; make it with `create` or `attach`."""

    def __init__(self, path: Path, fd: int, header: SegmentHeader) -> None:
        """Takes ownership of `fd`, an open file whose header was read under its lock."""
        self._path = path
        self._fd = fd
        self._header = header
        self._mapped: _Mapped | None = _Mapped.of(fd, header)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        size_bytes: int,
        owner_pid: int | None = None,
        max_regions: int = MAX_REGIONS,
        *,
        reserve: bool = True,
    ) -> Self:
        """Makes a new segment.

        Args:
            path: of the file, in a memory-backed directory (/dev/shm).
            size_bytes: that regions can take together; rounded up to a page. The file is a little larger.
            owner_pid: process whose life the segment's life follows; this one if absent.
            max_regions: entries of the region table.
            reserve: allocate and touch all memory now. False = each page is allocated by the first write to it; if the
                machine has none left then, that write ends its process with a bus error.
        Raises: UbExistsError if the file is there; UbMissingError if its directory is not; UbFullError if the directory
            has no room; SpecError for an impossible size or an owner that does not run.
        Effects: a file of mode 600 and its memory.
        """
        spec = _new_header(size_bytes, owner_pid, max_regions)
        return cls._make(Path(path), spec, reserve=reserve)

    @classmethod
    def attach(cls, path: str | os.PathLike[str]) -> Self:
        """Maps a segment that another process made, and waits while it is being made.

        Raises: UbMissingError if there is no such file; UbCorruptError if it is no whole segment; UbBusyError if its
            lock is not given in time.
        Effects: the memory is mapped in this process.
        """
        where = Path(path)
        fd = segment_file.open_file(where)
        try:
            with locked(fd, str(where)):
                header = segment_file.read_header(fd, where)
            if header is None:
                raise UbCorruptError(
                    f"{where} was left half made; remove it (or start again, which does) and create it"
                )
            return cls(where, fd, header)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def _make(cls, path: Path, spec: SegmentHeader, *, reserve: bool) -> Self:
        for _ in range(_ATTEMPTS):
            fd = segment_file.open_file(path, create=True)
            made = False
            try:
                with locked(fd, str(path)):
                    if os.fstat(fd).st_nlink > 0:
                        segment_file.initialise(fd, path, spec, reserve=reserve)
                        made = True
                if made:
                    return cls(path, fd, spec)
            except BaseException:
                if made:  # and not to be mapped: its memory would be nobody's
                    segment_file.unlink_if_same(fd, path)
                os.close(fd)
                raise
            os.close(fd)
        raise UbBusyError(f"{path} was removed {_ATTEMPTS} times while it was being made; end the process that does it")

    @property
    def path(self) -> Path:
        """Where the segment is."""
        return self._path

    @property
    def capacity_bytes(self) -> Bytes:
        """Bytes that regions can take together."""
        return self._header.capacity_bytes

    @property
    def session(self) -> int:
        """Random number of this very segment; another one at the same path has another number."""
        return self._header.session

    @property
    def owner(self) -> ProcessStamp:
        """The process whose life the segment's life follows."""
        return self._header.owner

    @property
    def used_bytes(self) -> Bytes:
        """Bytes held by regions, those of dead processes included."""
        return self._under_lock(lambda mapped: mapped.table.used_bytes)

    @property
    def free_bytes(self) -> Bytes:
        """Free bytes; they may be in several holes."""
        return self._under_lock(lambda mapped: mapped.table.free_bytes)

    def allocate(self, nbytes: int, owner: str, align: int = PAGE) -> UbRegion:
        """Takes a run of bytes for this process; their content is undefined.

        Args:
            nbytes: above zero.
            owner: name of the requester, for messages and `regions`.
            align: of the offset in the file; a power of two.
        Raises: UbFullError if there is no hole or no table entry; UbRangeError for an impossible size or alignment.
        Effects: regions of dead processes are given back first; then the bytes are held until `release` or the end of
            this process.
        """
        return self._under_lock(lambda mapped: _allocate(mapped, nbytes, owner, align))

    def release(self, region: UbRegion) -> None:
        """Gives a region back.

        Raises: UbStaleError if it is not held any more.
        Effects: its bytes may be given out again.
        """
        self._under_lock(lambda mapped: mapped.table.release(region))

    def regions(self) -> tuple[UbRegion, ...]:
        """Regions held now, in order of offset; those of dead processes are still among them."""
        return self._under_lock(lambda mapped: mapped.table.regions())

    def view(self, region: UbRegion) -> memoryview:
        """The bytes of a region, to write to; a tensor or an array may sit on them without a copy.

        The view stays valid memory even after `release` and `close`; its content may then belong to another owner.

        Raises: UbStaleError if the region is not held any more; UbRangeError if it is not of this segment.
        """
        mapped = self._require_inside(region.offset, region.nbytes)
        mapped.table.require_live(region.generation, region.owner)
        return memoryview(mapped.memory)[region.offset : region.offset + region.nbytes]

    def read(self, offset: int, nbytes: int, generation: int | None = None) -> memoryview:
        """Bytes that any process put there, read-only.

        Args:
            offset: from the start of the file, as `UbRegion.offset` counts.
            nbytes: 0 is allowed.
            generation: of the region that the bytes belong to; given, the region must still be held.
        Raises: UbRangeError if the range leaves the segment's data; UbStaleError if the region was released or
            reclaimed.
        """
        mapped = self._require_inside(offset, nbytes)
        if generation is not None:
            mapped.table.require_live(generation, f"offset {offset}")
        return memoryview(mapped.memory)[offset : offset + nbytes].toreadonly()

    def check(self) -> None:
        """Verifies file, header and region table.

        Raises: UbCorruptError naming the first fault.
        """
        self._under_lock(self._check)

    def snapshot(self) -> dict[str, Any]:
        """State as plain values, for a status page.

        Returns: path, session, capacity, used and free bytes, and held bytes by owner.
        """
        held: dict[str, int] = {}
        for region in self.regions():
            held[region.owner] = held.get(region.owner, 0) + region.nbytes
        used = sum(held.values())
        return {
            "path": str(self._path),
            "session": f"{self.session:016x}",
            "capacity_bytes": self.capacity_bytes,
            "used_bytes": used,
            "free_bytes": self.capacity_bytes - used,
            "owners": held,
        }

    def close(self) -> None:
        """Ends this process's use of the segment. Regions stay held; existing views stay valid memory.

        To be called when no other thread uses this object any more.

        Effects: every other method raises UbClosedError from now on; closing twice is allowed.
        """
        if self._mapped is not None:
            self._mapped = None
            os.close(self._fd)

    def remove(self) -> None:
        """Removes the file, if it is still this segment, and closes. Processes that map it keep their memory.

        Effects: further attaches fail; the memory is freed with the last mapping.
        """
        self._end(segment_file.unlink_if_same)

    def discard(self) -> None:
        """Remove the segment; only the memory that processes map remains (`leftover.keep`), the rest is zeroed.

        Effects: all other memory is freed immediately.
        """
        self._end(segment_file.discard)

    def _end(self, remove: Callable[[int, Path], object]) -> None:
        if self._mapped is not None:
            with locked(self._fd, str(self._path)):
                remove(self._fd, self._path)
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check(self, mapped: _Mapped) -> None:
        if segment_file.read_header(self._fd, self._path) != self._header:
            raise UbCorruptError(f"the header of {self._path} was overwritten; remove the segment and start again")
        mapped.table.check()
        newest = max((region.generation for region in mapped.table.regions()), default=0)
        if newest >= int(mapped.next_generation[0]):
            raise UbCorruptError(f"{self._path}: region {newest} is newer than the counter; remove it and start again")

    def _require_inside(self, offset: int, nbytes: int) -> _Mapped:
        mapped = self._require_open()
        start, end = self._header.data_start, self._header.file_bytes
        if nbytes < 0 or not start <= offset <= offset + nbytes <= end:
            raise UbRangeError(
                f"{nbytes} bytes at {offset} are outside {self._path}, whose data is [{start}, {end}) "
                f"({format_bytes(self.capacity_bytes)}); the descriptor belongs to another segment"
            )
        return mapped

    def _require_open(self) -> _Mapped:
        if self._mapped is None:
            raise UbClosedError(f"{self._path} was closed in this process; attach again")
        return self._mapped

    def _under_lock(self, action: Callable[[_Mapped], _T]) -> _T:
        mapped = self._require_open()
        with locked(self._fd, str(self._path)):
            return action(mapped)


def _allocate(mapped: _Mapped, nbytes: int, owner: str, align: int) -> UbRegion:
    _reclaim_dead(mapped)
    generation = int(mapped.next_generation[0])
    mapped.next_generation[0] = generation + 1  # first: a number is spent even if we are killed before it is used
    return mapped.table.allocate(nbytes, owner, align, ProcessStamp.own(), generation)


def _reclaim_dead(mapped: _Mapped) -> None:
    dead = {process for process in mapped.table.holders() if not process.is_alive()}
    for region in mapped.table.regions() if dead else ():
        if region.process in dead:
            mapped.table.release(region)


def _new_header(size_bytes: int, owner_pid: int | None, max_regions: int) -> SegmentHeader:
    if size_bytes <= 0 or max_regions <= 0:
        raise SpecError(
            f"a segment of {size_bytes} bytes with {max_regions} regions cannot be; both must be above zero"
        )
    owner = ProcessStamp.own() if owner_pid is None else ProcessStamp.of(owner_pid)
    if owner is None:
        raise SpecError(f"process {owner_pid} does not run, so it cannot own a segment; name a living process")
    session = int.from_bytes(os.urandom(8), "little")
    return SegmentHeader(max_regions, Bytes(round_up(size_bytes, PAGE)), owner, session)


# The segments of others that one process has mapped, by path.


class Attachments:
    """Maps a segment at its first use and unmaps those of ended owners. For one thread.

    A removed file keeps its memory while any process maps it, so segments of ended owners are searched: at each new
    mapping, which is when processes come and go.
    """

    def __init__(self) -> None:
        self._segments: dict[Path, UbSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, path: str | os.PathLike[str]) -> UbSegment:
        """The segment at `path`, mapped.

        Raises: UbMissingError, UbCorruptError, UbBusyError, as `UbSegment.attach`.
        Effects: may map it; may close others.
        """
        where = Path(path)
        known = self._segments.get(where)
        if known is None:
            self._close_dead()
            known = self._segments[where] = UbSegment.attach(where)
        return known

    def forget(self, path: str | os.PathLike[str]) -> None:
        """Close one segment; the next `get` maps the file at its path by then. Unknown ones are ignored."""
        segment = self._segments.pop(Path(path), None)
        if segment is not None:
            segment.close()

    def close(self) -> None:
        """Close all of them."""
        for path in list(self._segments):
            self.forget(path)

    def _close_dead(self) -> None:
        for path, segment in list(self._segments.items()):
            if not segment.owner.is_alive():
                self.forget(path)
