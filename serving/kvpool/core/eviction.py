"""Eviction order of entries in memory: four policies behind one small protocol.

A policy only orders version numbers; its caller decides which entries may leave. The caller calls `coldest` with a
filter. Entries that the filter rejects are *set aside*, so that the next call does not visit them again, until the
caller puts them back with `put_back`. A pinned entry thus costs one visit, not one on every call.

    lru     evicts the least recently used entry
    lfu     evicts the least frequently used entry; of equals, the least recently used
    fifo    evicts the oldest entry, used or not
    cost    evicts the entry with the lowest uses x cost / size (GreedyDual-Size-Frequency), aged by earlier evictions
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Protocol

from serving.errors import LedgerError
from serving.kvpool.core.queue_order import QueueOrder, Rank


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
