"""Eviction order of entries in memory: four policies behind one small protocol.

A policy only orders version numbers; its caller decides which entries may leave. The caller calls `coldest` with a
filter. Entries that the filter rejects are *set aside*, so that the next call does not visit them again, until the
caller puts them back with `put_back`. A pinned entry thus costs one visit, not one on every call.

    lru     evicts the least recently used entry
    lfu     evicts the least frequently used entry; of equals, the least recently used
    fifo    evicts the oldest entry, used or not
    cost    evicts the entry with the lowest uses x cost / size (GreedyDual-Size-Frequency), aged by earlier evictions
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Protocol

from serving.errors import LedgerError

Rank = tuple[float, int]
"""Place in the order: the entry with the lowest rank leaves first. Ranks of different policies are not comparable."""


class EvictionPolicy(Protocol):
    """The order in which entries are evicted; an entry is named by its version.

    Unknown versions are ignored by `touch`, `cool`, `remove` and `put_back`. A version that was set aside stays known,
    but takes no part in the order until it is put back, or used under a policy for which use counts.

    Attributes:
        epoch: while it stays the same, the ranks of versions fall only by `cool` and `swap`.
    """

    epoch: int

    def insert(self, version: int, nbytes: int, cost: float) -> None:
        """Add a version as just used. `cost`: of restoring its bytes, in a unit common to all entries."""

    def touch(self, versions: Iterable[int]) -> None:
        """Record that these versions were used now, in this order."""

    def use(self, version: int) -> None:
        """The same as `touch` of one version."""

    def cool(self, version: int) -> None:
        """Move a version to the cold end, behind those that were cooled before: it leaves next unless it is used."""

    def swap(self, one: int, other: int) -> None:
        """Let two known versions exchange their places. Raises: LedgerError if one is unknown."""

    def remove(self, version: int) -> None:
        """Remove a version."""

    def coldest(self, limit: int, usable: Callable[[int], bool]) -> list[int]:
        """The first `limit` versions in the order that are `usable`; sets aside the unusable ones before them."""

    def first(self, usable: Callable[[int], bool]) -> int | None:
        """The version that `coldest` would return first; None if none is usable."""

    def put_back(self, version: int) -> None:
        """Return a version that was set aside to the order."""

    def rank(self, version: int) -> Rank:
        """Place of a version in the order, set aside or not."""

    def __len__(self) -> int:
        """Number of known versions, including those set aside."""

    def __contains__(self, version: int) -> bool:
        """Whether the version is known."""


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


class _Weighed:
    """Weight of one version in a heap order."""

    __slots__ = ("aside", "born", "rank", "uses", "value")

    def __init__(self, rank: Rank, value: float) -> None:
        self.rank = rank
        self.born = rank[1]
        self.value = value
        self.uses = 1
        self.aside = False


class HeapOrder:
    """LFU and COST: ranks that only grow with use, in a heap whose outdated items are corrected when they surface.

    Use is O(1); `coldest` is O(log n) per item, amortized over the uses before it. When very many items are outdated,
    the heap is rebuilt once, in O(n).
    """

    __slots__ = ("_age", "_by_cost", "_clock", "_heap", "_known", "epoch")

    REBUILD_AFTER = 256

    def __init__(self, by_cost: bool) -> None:
        """
        Args:
            by_cost: True = uses x cost / size with ageing; False = the number of uses alone.
        """
        self._by_cost = by_cost
        self.epoch = 0
        self._clock = 0
        self._age = 0.0
        self._known: dict[int, _Weighed] = {}
        # At most one item of each living entry; `born` tells it from one of an earlier stay of the same version.
        self._heap: list[tuple[Rank, int, int]] = []

    def insert(self, version: int, nbytes: int, cost: float) -> None:
        """See `EvictionPolicy`. Raises: LedgerError if it is there already."""
        if version in self._known:
            raise LedgerError(f"version {version} ordered twice")
        self._clock += 1
        value = cost / nbytes if self._by_cost else 1.0
        item = self._known[version] = _Weighed((self._age + value, self._clock), value)
        heappush(self._heap, (item.rank, version, item.born))

    def touch(self, versions: Iterable[int]) -> None:
        known, age = self._known, self._age
        clock = self._clock
        for version in versions:
            clock += 1
            item = known.get(version)
            if item is not None:
                item.uses += 1
                item.rank = (age + item.uses * item.value, clock)
                if item.aside:
                    item.aside = False
                    heappush(self._heap, (item.rank, version, item.born))
        self._clock = clock

    def use(self, version: int) -> None:
        self.touch((version,))

    def cool(self, version: int) -> None:
        item = self._known.get(version)
        if item is not None:
            self._clock += 1
            item.rank, item.born, item.aside = (-inf, self._clock), self._clock, False
            heappush(self._heap, (item.rank, version, item.born))

    def swap(self, one: int, other: int) -> None:
        places = ((one, self.rank(other)), (other, self.rank(one)))
        for version, rank in places:
            item = self._known[version]
            self._clock += 1
            item.rank, item.born = rank, self._clock
            if not item.aside:
                heappush(self._heap, (rank, version, item.born))

    def remove(self, version: int) -> None:
        """See `EvictionPolicy`. Its item in the heap is dropped when it surfaces, or when too many are outdated."""
        if self._known.pop(version, None) is not None and len(self._heap) > 2 * len(self._known) + self.REBUILD_AFTER:
            self._rebuild()

    def coldest(self, limit: int, usable: Callable[[int], bool]) -> list[int]:
        """See `EvictionPolicy`. With `by_cost`, the remaining entries age to the rank of the first."""
        found: list[tuple[Rank, int, int]] = []
        outdated = 0
        while self._heap and len(found) < limit:
            rank, version, born = self._heap[0]
            item = self._known.get(version)
            if item is None or item.aside or item.born != born:
                heappop(self._heap)
            elif item.rank != rank:
                heapreplace(self._heap, (item.rank, version, item.born))
                outdated += 1
                if outdated == self.REBUILD_AFTER:
                    self._rebuild(without=[v for _rank, v, _born in found])
            else:
                heappop(self._heap)
                if usable(version):
                    found.append((rank, version, born))
                else:
                    item.aside = True
        for ranked in found:
            heappush(self._heap, ranked)
        if found and self._by_cost:
            self._age = max(self._age, found[0][0][0])
        return [version for _rank, version, _born in found]

    def first(self, usable: Callable[[int], bool]) -> int | None:
        return next(iter(self.coldest(1, usable)), None)

    def put_back(self, version: int) -> None:
        item = self._known.get(version)
        if item is not None and item.aside:
            item.aside = False
            heappush(self._heap, (item.rank, version, item.born))

    def rank(self, version: int) -> Rank:
        """See `EvictionPolicy`. Raises: LedgerError if it is not there."""
        item = self._known.get(version)
        if item is None:
            raise LedgerError(f"version {version} is not in the order")
        return item.rank

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, version: object) -> bool:
        return version in self._known

    def _rebuild(self, without: Iterable[int] = ()) -> None:
        skipped = set(without)
        self._heap = [(i.rank, v, i.born) for v, i in self._known.items() if not i.aside and v not in skipped]
        heapify(self._heap)


def make_policy(name: str) -> EvictionPolicy:
    """The policy of this name.

    Raises: LedgerError for a name that is none; the configuration checks it before.
    """
    match name:
        case "lru":
            return QueueOrder(moves=True)
        case "fifo":
            return QueueOrder(moves=False)
        case "lfu":
            return HeapOrder(by_cost=False)
        case "cost":
            return HeapOrder(by_cost=True)
        case _:
            raise LedgerError(f"no eviction policy is called {name!r}")
