"""Promotions: entries that are loaded from the SSD back into DRAM, and those that wait for space there."""

from collections import OrderedDict
from heapq import heappop, heappush

from serving.errors import LedgerError
from serving.kvpool.core.entry import Entry, LoadFromSsd
from serving.kvpool.core.evictor import Evictor
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.quota_room import quota_room

_TRIES = 16
"""Limit of waiting objects tried at a time, so that a large one does not block small ones, at bounded cost."""


class Promotions:
    """Waiting and running loads of entries. A load without space in DRAM waits for `lease_s`, then it is given up."""

    def __init__(self, inventory: Inventory, evictor: Evictor) -> None:
        self.under_way = 0
        self._inventory = inventory
        self._evictor = evictor
        self._wait_s = inventory.settings.lease_s
        self._waiting: OrderedDict[int, float] = OrderedDict()  # version -> when the wish is given up
        self._due: list[tuple[float, int]] = []  # the same by time; also of those that wait no more

    @property
    def next_due(self) -> float | None:
        """When the first waiting load is given up; None if none waits."""
        due, waiting = self._due, self._waiting
        while due and waiting.get(due[0][1]) != due[0][0]:
            heappop(due)
        return due[0][0] if due else None

    def want(self, entry: Entry, now: float) -> None:
        """Bring an entry to DRAM, at once or when there is room."""
        if entry.in_dram or entry.loading or entry.version in self._waiting:
            return
        if not self.start(entry, now):
            until = self._waiting[entry.version] = now + self._wait_s
            heappush(self._due, (until, entry.version))

    def pending(self, version: int) -> bool:
        """Whether its load is waiting or running."""
        entry = self._inventory.visible(version)
        return entry is not None and (entry.loading or version in self._waiting)

    def start(self, entry: Entry, now: float) -> bool:
        """Order the load of an entry that is on SSD only. Returns: False if there is no room now."""
        return self._inventory.allocator.fits(entry.nbytes) and self._try(entry, now)

    def retry(self, now: float) -> None:
        """Start waiting loads that now have space, a bounded number per call in turns; give up those that timed out."""
        waiting, inventory = self._waiting, self._inventory
        while (due := self.next_due) is not None and now >= due:
            version = heappop(self._due)[1]
            del waiting[version]
            inventory.counters.promotion_failures += inventory.visible(version) is not None
        tries = 0
        for _ in range(len(waiting)):
            version, until = waiting.popitem(last=False)
            entry = inventory.visible(version)
            if entry is None:
                continue
            tries += 1
            if not self._try(entry, now):
                waiting[version] = until  # behind the others: what never finds room holds up nobody
            if tries == _TRIES:
                return

    def finish(self, version: int, ok: bool, *, unreadable: bool = False) -> None:
        """Report the end of a load.

        Args:
            ok: its bytes are in its extent and have the right checksum; else it is removed for good.
            unreadable: the disk could not read just now, so its bytes were not checked; it stays where it is.
        Raises: LedgerError if no load of this version is running.
        """
        inventory = self._inventory
        entry = inventory.by_version.get(version)
        if entry is None or not entry.loading:
            raise LedgerError(f"version {version} reported as loaded without a request")
        entry.loading = False
        self.under_way -= 1
        if ok and not entry.hidden:
            inventory.counters.promotions += 1
            inventory.into_dram(entry)
            return
        inventory.free_extent(entry)  # no reader was ever told of it
        if entry.hidden:
            inventory.unpinned(entry)
        else:
            inventory.counters.promotion_failures += 1
            if not unreadable:
                inventory.hide(entry)

    def __len__(self) -> int:
        return len(self._waiting)

    def _try(self, entry: Entry, now: float) -> bool:
        entry.loading = True  # from here on: the room that is made for it must not cost its own file
        inventory = self._inventory
        quota_kept = quota_room(inventory, entry.account, entry.nbytes)
        offset = self._evictor.extent(entry.nbytes, now) if quota_kept else None
        if offset is None:
            entry.loading = False
            return False
        inventory.give_extent(entry, offset)
        self.under_way += 1
        place = inventory.base_offset + offset
        order = LoadFromSsd(entry.version, entry.space, entry.hash, entry.kind, place, entry.nbytes, entry.checksum)
        inventory.orders.append(order)
        return True
