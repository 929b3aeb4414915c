"""The region table of a UB segment: owners of byte ranges.

Pure bookkeeping over one numpy array, which for a segment is in shared memory. It takes no lock and does not check
processes; the segment does both.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hardware.errors import UbCorruptError, UbFullError, UbRangeError, UbStaleError
from hardware.ub.process import ProcessStamp
from hardware.units import Bytes, format_bytes

Entries = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class UbRegion:
    """A run of bytes that one process holds.

    Attributes:
        offset: from the start of the segment's file.
        nbytes: requested bytes.
        generation: number that no other region of this segment ever had; distinguishes a region from a later one in its
        place. owner: name of the owner, for messages. process: which process holds it; the region is reclaimed after
        that process has ended.
    """

    offset: int
    nbytes: int
    generation: int
    owner: str
    process: ProcessStamp


class RegionTable:
    """First-fit allocation of `[start, end)` with its books in an array of `layout.ENTRY`."""

    def __init__(self, entries: Entries, start: int, end: int) -> None:
        """
        Args:
            entries: [max_regions] layout.ENTRY, possibly shared with other processes.
            start: first byte that may be given out.
            end: first byte after them.
        """
        self._entries = entries
        self._start = start
        self._end = end

    @property
    def capacity_bytes(self) -> Bytes:
        """Bytes that may be given out."""
        return Bytes(self._end - self._start)

    @property
    def used_bytes(self) -> Bytes:
        """Bytes held."""
        return Bytes(int(self._live()["nbytes"].sum()))

    @property
    def free_bytes(self) -> Bytes:
        """Bytes not held; they may be in several holes."""
        return Bytes(self.capacity_bytes - self.used_bytes)

    def regions(self) -> tuple[UbRegion, ...]:
        """Live regions in order of offset."""
        return tuple(_to_region(entry) for entry in self._live())

    def holders(self) -> set[ProcessStamp]:
        """Processes that hold at least one region."""
        live = self._entries[self._entries["generation"] != 0]
        columns = (live[name].tolist() for name in ("pid", "start", "namespace"))
        return {ProcessStamp(*stamp) for stamp in set(zip(*columns, strict=True))}

    def holes(self) -> list[tuple[int, int]]:
        """Free runs as (offset, bytes) in order of offset."""
        live = self._live()
        begins = np.append(live["offset"], np.uint64(self._end)).astype(np.int64)
        ends = np.insert((live["offset"] + live["nbytes"]).astype(np.int64), 0, self._start)
        sizes = begins - ends
        return [(int(end), int(size)) for end, size in zip(ends, sizes, strict=True) if size > 0]

    def allocate(self, nbytes: int, owner: str, align: int, process: ProcessStamp, generation: int) -> UbRegion:
        """Gives out the first hole that is large enough.

        Args:
            nbytes: above zero.
            owner: name of the requester; cut to 80 bytes of UTF-8.
            align: of the offset; a power of two.
            process: the new owner.
            generation: never used before in this segment.
        Raises: UbRangeError if the size or the alignment cannot be; UbFullError if no hole or no entry is left.
        Effects: one entry becomes live.
        """
        if nbytes <= 0 or align <= 0 or align & (align - 1):
            raise UbRangeError(
                f"{owner!r} asked for {nbytes} bytes at alignment {align}; request more than 0, at a power of two"
            )
        place = self._first_fit(nbytes, align)
        slot = self._free_slot()
        if place is None or slot is None:
            raise UbFullError(self._why_full(nbytes, owner, slot is None))
        entry = self._entries[slot]
        entry["offset"], entry["nbytes"] = place, nbytes
        entry["pid"], entry["start"], entry["namespace"] = process.pid, process.start_ticks, process.pid_namespace
        entry["owner"] = owner.encode()[:OWNER_BYTES].decode(errors="ignore").encode()
        entry["generation"] = generation  # last: from now on the region exists
        return _to_region(entry)

    def release(self, region: UbRegion) -> None:
        """Takes a region back.

        Raises: UbStaleError if it is not live.
        Effects: its entry is free.
        """
        self._entries["generation"][self._slot_of(region.generation, region.owner)] = 0

    def require_live(self, generation: int, who: str) -> None:
        """Refuses a generation that no live region has; one atomic read, so it needs no lock.

        Raises: UbStaleError if there is none.
        """
        self._slot_of(generation, who)

    def check(self) -> None:
        """Verifies the table: regions inside, none overlapping, generations unique, owners readable.

        The array may have been written by another process, so a fault is an error and no assertion.

        Raises: UbCorruptError naming the first fault.
        """
        live = self._live()
        previous_end = self._start
        for entry in live:
            offset, nbytes = int(entry["offset"]), int(entry["nbytes"])
            if offset < previous_end or nbytes <= 0 or offset + nbytes > self._end:
                raise UbCorruptError(
                    f"region {entry['generation']} at {offset} with {nbytes} bytes overlaps its neighbour or leaves "
                    f"[{self._start}, {self._end}); remove the segment and start again"
                )
            previous_end = offset + nbytes
        if len(np.unique(live["generation"])) != len(live):
            raise UbCorruptError("two regions have the same generation; remove the segment and start again")

    def _live(self) -> Entries:
        live = self._entries[self._entries["generation"] != 0]
        ordered: Entries = live[np.argsort(live["offset"])]
        return ordered

    def _first_fit(self, nbytes: int, align: int) -> int | None:
        for offset, size in self.holes():
            place = round_up(offset, align)
            if place + nbytes <= offset + size:
                return place
        return None

    def _free_slot(self) -> int | None:
        free = np.flatnonzero(self._entries["generation"] == 0)
        return int(free[0]) if len(free) else None

    def _slot_of(self, generation: int, who: str) -> int:
        found = np.flatnonzero(self._entries["generation"] == generation)
        if generation <= 0 or len(found) == 0:  # 0 marks the free entries
            raise UbStaleError(
                f"region {generation} of {who!r} no longer exists: released, or reclaimed after its process died; "
                "treat its bytes as lost"
            )
        return int(found[0])

    def _why_full(self, nbytes: int, owner: str, no_entry: bool) -> str:
        held: dict[str, int] = {}
        for region in self.regions():
            held[region.owner] = held.get(region.owner, 0) + region.nbytes
        largest = max((size for _, size in self.holes()), default=0)
        holders = ", ".join(f"{who} {format_bytes(size)}" for who, size in held.items()) or "nobody"
        table = f"all {len(self._entries)} table entries are in use, " if no_entry else ""
        return (
            f"{owner!r} asked for {format_bytes(nbytes)}: {table}free are {format_bytes(self.free_bytes)} of "
            f"{format_bytes(self.capacity_bytes)}, the largest hole is {format_bytes(largest)} (held by {holders}); "
            "give the node more UB memory or release regions"
        )


def _to_region(entry: Any) -> UbRegion:  # noqa: ANN401 - numpy has no type for one structured element
    process = ProcessStamp(int(entry["pid"]), int(entry["start"]), int(entry["namespace"]))
    owner = bytes(entry["owner"]).decode(errors="replace")
    return UbRegion(int(entry["offset"]), int(entry["nbytes"]), int(entry["generation"]), owner, process)


# File layout of a UB segment.
#
#     offset 0            one page      header: magic, version, sizes, owner process, session, next generation
#     offset 4096         region table  one 128-byte entry per region
#     offset data_start   capacity      bytes of the regions, page-aligned
#
# Offsets of regions count from the start of the file, so that one number serves every process. All numbers are
# little-endian; a reader with another byte order reads a wrong magic.
#
# Theory of operation. Every change happens under the file's lock, but a process may be killed between any two stores.
# The header is written last and in one piece, so a half-made segment is recognised. An entry is live when its
# generation is not zero: that field is written last when a region is created and cleared first when it is released, so
# a killed writer leaves a consistent table, and readers need no lock.

MAGIC = int.from_bytes(b"CMUBSEG1", "little")
VERSION = 1
PAGE = 4096
OWNER_BYTES = 80

HEADER = np.dtype(
    [
        ("magic", "<u8"),
        ("version", "<u4"),
        ("max_regions", "<u4"),
        ("data_start", "<u8"),
        ("capacity", "<u8"),
        ("owner_pid", "<u8"),
        ("owner_start", "<u8"),
        ("owner_namespace", "<u8"),
        ("session", "<u8"),
        ("next_generation", "<u8"),
    ]
)

ENTRY = np.dtype(
    [
        ("generation", "<u8"),
        ("offset", "<u8"),
        ("nbytes", "<u8"),
        ("pid", "<u8"),
        ("start", "<u8"),
        ("namespace", "<u8"),
        ("owner", f"S{OWNER_BYTES}"),
    ]
)

assert HEADER.itemsize <= PAGE
assert ENTRY.itemsize == 128


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is not below `value`."""
    return -(-value // step) * step


def data_start(max_regions: int) -> int:
    """Offset of the regions' bytes in the file."""
    return PAGE + round_up(max_regions * ENTRY.itemsize, PAGE)
