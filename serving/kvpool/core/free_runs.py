"""Runs of free slabs: take a run of a given length, return one, merge neighbours.

Best fit: the shortest run that is long enough, so that long runs stay for large objects. All operations cost
O(log(distinct lengths)), for any number of slabs.
"""

from bisect import bisect_left, insort
from collections import OrderedDict

from serving.errors import LedgerError


class FreeRuns:
    """Which slabs of `0 ... slabs - 1` are free, kept as maximal runs."""

    __slots__ = ("_length_at", "_lengths", "_start_by_end", "_starts", "free_slabs", "slabs")

    def __init__(self, slabs: int) -> None:
        """
        Args:
            slabs: how many there are; all are free.
        Raises: LedgerError if there is none.
        """
        if slabs < 1:
            raise LedgerError(f"an allocator needs at least one slab, got {slabs}")
        self.slabs = slabs
        self.free_slabs = 0
        self._length_at: dict[int, int] = {}
        self._start_by_end: dict[int, int] = {}
        # Ordered ones, because finding the last item of a plain dict gets slow after many deletions.
        self._starts: dict[int, OrderedDict[int, None]] = {}
        self._lengths: list[int] = []  # those with a run, ascending
        self.give(0, slabs)

    @property
    def longest(self) -> int:
        """Slabs of the longest run; 0 = no slab is free."""
        return self._lengths[-1] if self._lengths else 0

    def take(self, length: int) -> int | None:
        """Take `length` neighbouring slabs.

        Returns: the first of them, or None if no run is that long.
        """
        index = bisect_left(self._lengths, length)
        if index == len(self._lengths):
            return None
        have = self._lengths[index]
        start = next(reversed(self._starts[have]))
        self._remove(start)
        if have > length:
            self._add(start + length, have - length)
        self.free_slabs -= length
        return start

    def give(self, start: int, length: int) -> None:
        """Make slabs free again.

        Raises: LedgerError if one of them is free already or does not exist.
        """
        if length < 1 or start < 0 or start + length > self.slabs:
            raise LedgerError(f"slabs {start} to {start + length} given back, of {self.slabs}")
        if start in self._length_at or start + length in self._start_by_end:
            raise LedgerError(f"slabs from {start} given back twice")
        self.free_slabs += length
        before = self._start_by_end.get(start)
        if before is not None:
            length += self._remove(before)
            start = before
        if start + length in self._length_at:
            length += self._remove(start + length)
        self._add(start, length)

    def walled(self, start: int, length: int) -> bool:
        """Whether no free slab borders on these, so that they would be a run of their own."""
        return start not in self._start_by_end and start + length not in self._length_at

    def free_set(self) -> set[int]:
        """Every free slab."""
        return {slab for start, length in self._length_at.items() for slab in range(start, start + length)}

    def check(self) -> None:
        """Prove that runs do not touch or overlap and that all indices agree.

        Raises: LedgerError if not.
        """
        end = -1
        for start, length in sorted(self._length_at.items()):
            if start <= end or length < 1 or start + length > self.slabs:
                raise LedgerError(f"free run {start}+{length} touches another one or the end")
            end = start + length
        if self.free_slabs != sum(self._length_at.values()):
            raise LedgerError("the count of free slabs is wrong")
        if self._start_by_end != {start + length: start for start, length in self._length_at.items()}:
            raise LedgerError("ends and starts of free runs disagree")
        by_length: dict[int, set[int]] = {}
        for start, length in self._length_at.items():
            by_length.setdefault(length, set()).add(start)
        if {length: set(starts) for length, starts in self._starts.items()} != by_length:
            raise LedgerError("free runs are filed under another length")
        if self._lengths != sorted(by_length):
            raise LedgerError("the lengths of free runs are not those that there are")

    def _add(self, start: int, length: int) -> None:
        self._length_at[start] = length
        self._start_by_end[start + length] = start
        starts = self._starts.get(length)
        if starts is None:
            starts = self._starts[length] = OrderedDict()
            insort(self._lengths, length)
        starts[start] = None

    def _remove(self, start: int) -> int:
        length = self._length_at.pop(start)
        del self._start_by_end[start + length]
        starts = self._starts[length]
        del starts[start]
        if not starts:
            del self._starts[length]
            del self._lengths[bisect_left(self._lengths, length)]
        return length
