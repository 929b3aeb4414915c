"""Eviction order within one namespace, for memory servers that several namespaces share.

Claims reorder only the entries of their own namespace. If the next victim is claimed, an unclaimed entry of the same
namespace is evicted instead, and the two exchange their places in the shared order. Entries of other namespaces are
therefore evicted exactly as without claims:

    a1  b1  a2  b2      a1 is claimed   ─►   a2  b1  a1  b2      a2 is evicted, not b1
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice

from serving.kvpool.core.entry import Entry
from serving.kvpool.core.eviction import EvictionPolicy
from serving.kvpool.core.queue_order import QueueOrder, Rank
from serving.kvpool.core.quotas import Account

_PASSED = 64
"""Entries of a namespace that are passed over in one search."""
_SPARE = 1024


class OwnOrder:
    """The entries of one namespace, in the order of a policy that holds those of all.

    Each use of the policy leaves an outdated rank here, which is corrected when it surfaces: O(log n), amortised.
    """

    __slots__ = ("_aside", "_epoch", "_heap", "_policy")

    def __init__(self, policy: EvictionPolicy, versions: Iterable[int]) -> None:
        """
        Args:
            versions: those of the namespace; unknown ones are passed over.
        """
        self._policy = policy
        self._aside: set[int] = set()
        self._heap: list[tuple[Rank, int]] = []
        self._build(versions)

    def add(self, version: int) -> None:
        """A version of the namespace that the policy has got, or has cooled."""
        self._aside.discard(version)
        heappush(self._heap, (self._policy.rank(version), version))
        if len(self._heap) + len(self._aside) > 2 * len(self._policy) + _SPARE:
            self._build({version for _rank, version in self._heap} | self._aside)

    def put_back(self, version: int) -> None:
        """Return a version that was not usable. Ignored if it was not asked for."""
        if version in self._aside:
            self.add(version)

    def after(self, version: int, usable: Callable[[int], bool], fits: Callable[[int], bool]) -> int | None:
        """The first version behind this one that is usable and fits; None if there is none, or too many do not fit.

        Args:
            usable: others are not visited again until they are put back.
        """
        policy, heap = self._policy, self._heap
        if policy.epoch != self._epoch:
            self._build({version for _rank, version in heap} | self._aside)
            heap = self._heap
        place = policy.rank(version)
        passed: list[tuple[Rank, int]] = []
        found: int | None = None
        while heap and len(passed) <= _PASSED:
            item = heap[0]
            rank, own = item
            if own not in policy:
                heappop(heap)
            elif not usable(own):
                heappop(heap)
                self._aside.add(own)
            elif (now := policy.rank(own)) != rank:
                heapreplace(heap, (now, own))
            elif rank > place and fits(own):
                found = own
                break
            else:
                passed.append(heappop(heap))
        for item in passed:
            heappush(heap, item)
        return found

    def _build(self, versions: Iterable[int]) -> None:
        self._epoch = self._policy.epoch
        self._aside.clear()
        self._heap = [(self._policy.rank(version), version) for version in versions if version in self._policy]
        heapify(self._heap)


class OwnOrders:
    """The own orders of namespaces that claim. One is opened when it is needed, in O(entries of the namespace)."""

    def __init__(self, policy: EvictionPolicy, by_version: Mapping[int, Entry]) -> None:
        self._policy = policy
        self._by_version = by_version
        self._of: dict[Account, OwnOrder] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, entry: Entry) -> None:
        """An entry that the policy has got, or has cooled."""
        account = entry.account
        own = self._of.get(account)
        if own is not None and not account.claims:
            del self._of[account]
        elif own is not None:
            own.add(entry.version)

    def put_back(self, entry: Entry) -> None:
        """An entry that may be of use again."""
        own = self._of.get(entry.account)
        if own is not None:
            own.put_back(entry.version)

    def instead(self, entry: Entry, usable: Callable[[int], bool]) -> Entry | None:
        """The next entry of the same namespace and size that is usable; see `OwnOrder.after`."""
        own, by_version = self._of.get(entry.account), self._by_version
        if own is None:
            own = self._of[entry.account] = OwnOrder(self._policy, entry.account.shown)
        version = own.after(entry.version, usable, lambda version: by_version[version].nbytes == entry.nbytes)
        return None if version is None else by_version[version]


class OwnFiles:
    """The files of a namespace that claims, on SSD: those that nobody claims, and the others, each by last use."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        """
        Args:
            entries: of the namespace, on SSD, the one used longest ago first.
        """
        self._plain, self._claimed = QueueOrder(moves=True), QueueOrder(moves=True)
        for entry in entries:
            self.of(entry).insert(entry.version, 0, 0.0)

    def __len__(self) -> int:
        return len(self._plain) + len(self._claimed)

    @property
    def spare(self) -> bool:
        """Whether there are any that nobody claims."""
        return bool(len(self._plain))

    def of(self, entry: Entry) -> QueueOrder:
        """The order that an entry belongs to."""
        return self._claimed if entry.claims else self._plain

    def reorder(self, entry: Entry) -> None:
        """An entry was not claimed before, or is not any more: it counts as used last among its likes."""
        (self._plain if entry.claims else self._claimed).remove(entry.version)
        self.of(entry).insert(entry.version, 0, 0.0)

    def first(self, usable: Callable[[int], bool]) -> int | None:
        """The one that leaves first; None if too many of the first ones are not usable."""
        looked = islice(chain(self._plain, self._claimed), _PASSED)
        return next((version for version in looked if usable(version)), None)
