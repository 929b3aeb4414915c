"""The order of eviction as one queue: least recently used first, or oldest first."""

from collections.abc import Callable, Iterable, Iterator

from serving.errors import LedgerError

Rank = tuple[float, int]
"""Place in the order: the entry with the lowest rank leaves first. Ranks of different policies are not comparable."""

_COLDEST = -(1 << 52)
_SWEEP_AT = 1024
"""Minimum number of places in a log before void ones are swept."""


class QueueOrder:
    """LRU and FIFO: one queue, in which use moves an entry to the end, or does not. All operations are O(1), amortized.

    The queue is a log of insertions and uses. Only the latest place of a version counts; its earlier ones are void:

        log     [ 4 | 7 | 4 | 9 | 7 ]       order: 4, 9, 7

    Cooled versions are in a log of their own, before the queue; their places count up from far below zero.
    """

    __slots__ = (
        "_aside",
        "_cold",
        "_cold_front",
        "_cold_log",
        "_front",
        "_log",
        "_moves",
        "_place",
        "_sweep_at",
        "epoch",
    )

    def __init__(self, moves: bool) -> None:
        """
        Args:
            moves: whether use counts: True = LRU, False = FIFO.
        """
        self._moves = moves
        self._log: list[int] = []
        self._front = 0  # no version in the order has a place before this
        self._place: dict[int, int] = {}  # version -> its place in the log
        self._aside: dict[int, int] = {}  # the same of versions that were set aside
        self._cold: dict[int, int] = {}  # the same of cooled ones, in their log
        self._cold_log: list[int] = []
        self._cold_front = 0
        self._sweep_at = _SWEEP_AT
        self.epoch = 0

    def insert(self, version: int, nbytes: int, cost: float) -> None:
        """See `EvictionPolicy`. Raises: LedgerError if it is there already."""
        del nbytes, cost
        place = len(self._log)
        if self._place.setdefault(version, place) != place or version in self._aside or version in self._cold:
            raise LedgerError(f"version {version} ordered twice")
        self._log.append(version)
        if place > self._sweep_at:
            self._sweep()

    def touch(self, versions: Iterable[int]) -> None:
        """See `EvictionPolicy`. A version that was set aside returns to the end of the queue, where visits are rare."""
        for version in versions:
            self.use(version)

    def use(self, version: int) -> None:
        if not self._moves:
            return
        if version not in self._place and self._aside.pop(version, None) is None:
            if self._cold.pop(version, None) is None:
                return
        self._place[version] = place = len(self._log)
        self._log.append(version)
        if place > self._sweep_at:
            self._sweep()

    def cool(self, version: int) -> None:
        if version in self:
            self.remove(version)
            self._cold[version] = _COLDEST + len(self._cold_log)
            self._cold_log.append(version)
            if len(self._cold_log) > 2 * len(self) + _SWEEP_AT:
                self._sweep()

    def swap(self, one: int, other: int) -> None:
        places = ((one, int(self.rank(other)[0])), (other, int(self.rank(one)[0])))
        for version, place in places:
            aside = self._aside.pop(version, None) is not None
            self.remove(version)
            if place < 0:
                self._cold_log[place - _COLDEST] = version
                self._cold_front = min(self._cold_front, place - _COLDEST)
            else:
                self._log[place] = version
                self._front = min(self._front, place)
            (self._aside if aside else self._cold if place < 0 else self._place)[version] = place

    def remove(self, version: int) -> None:
        if self._place.pop(version, None) is None and self._aside.pop(version, None) is None:
            self._cold.pop(version, None)

    def coldest(self, limit: int, usable: Callable[[int], bool]) -> list[int]:
        places, log = self._place, self._log
        found: list[int] = self._coolest(limit, usable) if self._cold else []
        if len(found) >= limit:
            return found
        at = self._front
        while at < len(log):
            version = log[at]
            if places.get(version) == at:
                if usable(version):
                    found.append(version)
                    if len(found) >= limit:
                        break
                else:
                    self._aside[version] = places.pop(version)
            at += 1
            if not found:
                self._front = at
        return found

    def _coolest(self, limit: int, usable: Callable[[int], bool]) -> list[int]:
        cold, log = self._cold, self._cold_log
        found: list[int] = []
        at = self._cold_front
        while at < len(log) and len(found) < limit:
            version = log[at]
            if cold.get(version) == _COLDEST + at:
                if usable(version):
                    found.append(version)
                else:
                    self._aside[version] = cold.pop(version)
            at += 1
            if not found:
                self._cold_front = at
        return found

    def __iter__(self) -> Iterator[int]:
        """Versions that are not set aside, in order. Meanwhile versions may be swapped, but nothing else may change."""
        self.coldest(1, lambda _version: True)  # passes over void places once and for all
        for log, front, offset in ((self._cold_log, self._cold_front, _COLDEST), (self._log, self._front, 0)):
            for at in range(front, len(log)):
                if (self._cold if offset else self._place).get(log[at]) == at + offset:
                    yield log[at]

    def first(self, usable: Callable[[int], bool]) -> int | None:
        return next(iter(self.coldest(1, usable)), None)

    def put_back(self, version: int) -> None:
        place = self._aside.pop(version, None)
        if place is not None and place < 0:
            self._cold[version] = place
            self._cold_front = min(self._cold_front, place - _COLDEST)
        elif place is not None:
            self._place[version] = place
            self._front = min(self._front, place)

    def rank(self, version: int) -> Rank:
        """See `EvictionPolicy`. Raises: LedgerError if it is not there."""
        place = self._place.get(version, self._aside.get(version, self._cold.get(version)))
        if place is None:
            raise LedgerError(f"version {version} is not in the order")
        return (place, version)

    def __len__(self) -> int:
        return len(self._place) + len(self._aside) + len(self._cold)

    def __contains__(self, version: object) -> bool:
        return version in self._place or version in self._aside or version in self._cold

    def _sweep(self) -> None:
        """Drop the void places. Places change, their order does not."""
        self._log = self._swept(self._log, self._place, 0)
        self._cold_log = self._swept(self._cold_log, self._cold, _COLDEST)
        self._front = self._cold_front = 0
        self._sweep_at = 2 * len(self._log) + _SWEEP_AT
        self.epoch += 1

    def _swept(self, old: list[int], living: dict[int, int], offset: int) -> list[int]:
        log: list[int] = []
        for at, version in enumerate(old):
            for places in (living, self._aside):
                if places.get(version) == at + offset:
                    places[version] = len(log) + offset
                    log.append(version)
                    break
        return log
