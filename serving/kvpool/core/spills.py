"""Writes to the SSD tier: when they start, how room for them is made, and what follows their end.

The file of an entry is named by its hash. While it is being written, no other copy of the same hash may use that file:
a successor of a hidden entry waits until the write is complete and the removal of the file is ordered.
"""

from collections import OrderedDict
from enum import Enum

from serving.errors import LedgerError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Entry, Kind, Space, Spill, Unlink
from serving.kvpool.core.inventory import Inventory

_SEARCH = 64
"""Number of leased entries at the cold end of the SSD tier that are skipped to find one that may be removed."""


class SpillStart(Enum):
    """Result of an attempt to start a spill."""

    STARTED = "started"
    BUSY = "busy"
    """The limit of concurrent spills is reached, or one of the same hash is in progress: try again later."""
    NO_ROOM = "no room"
    """SSD cannot take it: there is none, it is too small, or all that is there is leased."""


class Spills:
    """All spills under way."""

    def __init__(self, inventory: Inventory) -> None:
        self.leaving_bytes = 0
        """DRAM that is free after the running spills."""
        self.under_way = 0
        self._inventory = inventory
        self._ssd_bytes = inventory.settings.ssd_bytes
        self._limit = inventory.settings.max_spills
        self._files: dict[tuple[Space, BlockHash], int] = {}
        self._later: OrderedDict[int, Entry] = OrderedDict()
        self.hanging = False
        """The disk hangs in a write: no more orders are given."""

    @property
    def waiting(self) -> bool:
        """Whether a copy that write-through owes could be written now."""
        return bool(self._later) and not self.under_way

    def possible(self, entry: Entry) -> bool:
        """Whether SSD could ever take it."""
        return 0 < entry.nbytes <= self._ssd_bytes

    def start(self, entry: Entry, leaving: bool) -> SpillStart:
        """Order an entry to SSD. May order the least recently used entries away from SSD, never leased ones.

        Args:
            leaving: its extent is freed afterwards, unless it is in use by then.
        """
        if self.hanging or not self.possible(entry):
            return SpillStart.NO_ROOM
        key = (entry.space, entry.hash)
        if self.under_way >= self._limit or key in self._files:
            return SpillStart.BUSY
        if not self.make_room(entry.nbytes):
            return SpillStart.NO_ROOM
        self._files[key] = entry.version
        self.under_way += 1
        inventory = self._inventory
        inventory.ssd_used_bytes += entry.nbytes
        entry.spilling, entry.leaving, entry.used_since = True, leaving, False
        if leaving:
            self.leaving_bytes += inventory.allocator.charge_at(entry.offset)
        else:  # a move costs its namespace nothing, a copy counts from its begin
            entry.account.ssd_bytes += entry.nbytes
        offset = inventory.base_offset + entry.offset
        order = Spill(entry.version, entry.space, entry.hash, entry.kind, offset, entry.nbytes, entry.checksum)
        inventory.orders.append(order)
        return SpillStart.STARTED

    def make_room(self, nbytes: int) -> bool:
        """Let SSD have room for this much, if leases allow."""
        inventory = self._inventory
        lacking = inventory.ssd_used_bytes + nbytes - self._ssd_bytes
        if lacking <= 0:
            return True
        victims: list[Entry] = []
        passed = 0
        for entry in inventory.ssd_order.values():
            if entry.leases or entry.loading:
                passed += 1
                if passed > _SEARCH:
                    return False
                continue
            victims.append(entry)
            lacking -= entry.nbytes
            if lacking <= 0:
                break
        if lacking > 0:
            return False
        for entry in victims:
            inventory.counters.evicted_from_ssd += 1
            inventory.leave_ssd(entry)
        return True

    def finish(self, version: int, ok: bool) -> None:
        """Report the end of a spill.

        Args:
            ok: the file is complete and in its place; else there is no file.
        Raises: LedgerError if no spill of this version is running.
        """
        inventory = self._inventory
        entry = inventory.by_version.get(version)
        if entry is None or not entry.spilling:
            raise LedgerError(f"version {version} reported as spilled without a request")
        leaving = entry.leaving
        if leaving:
            self.leaving_bytes -= inventory.allocator.charge_at(entry.offset)
        elif not entry.hidden:
            entry.account.ssd_bytes -= entry.nbytes
        entry.spilling, entry.leaving = False, False
        self.under_way -= 1
        del self._files[entry.space, entry.hash]
        if ok:
            inventory.counters.spills += 1
            if entry.hidden:
                inventory.unlink(entry)
            else:
                inventory.onto_ssd(entry)
        else:
            inventory.counters.spill_failures += 1
            inventory.ssd_used_bytes -= entry.nbytes
        if leaving and not entry.pinned and not entry.used_since:
            inventory.leave_dram(entry)
        else:
            inventory.unpinned(entry)
        self.catch_up()

    def write_through(self, entry: Entry) -> None:
        """Copy a new entry to SSD, now or as soon as a spill may start; never at the cost of its namespace's quota."""
        if self._ssd_bytes and not entry.account.lacks(entry.nbytes):
            if self.start(entry, leaving=False) is SpillStart.BUSY:
                self._later[entry.version] = entry

    def catch_up(self) -> None:
        """Start spills that write-through has deferred."""
        for _ in range(len(self._later)):
            if self.under_way >= self._limit:
                return
            _version, entry = self._later.popitem(last=False)
            if entry.in_dram and not (entry.on_ssd or entry.spilling or entry.hidden):
                self.write_through(entry)

    def restore(
        self, space: Space, hash: BlockHash, kind: Kind, nbytes: int, checksum: int, last_use: float
    ) -> Entry | None:
        """Take over an entry whose file was found at the start; see `MemoryManager.restore`."""
        inventory = self._inventory
        known = inventory.of(space).get(hash)
        if self.file_busy(space, hash) or (known is not None and known.on_ssd):
            return None
        account = inventory.accounts.of(space.namespace)
        wanted = known is None and 0 < nbytes <= self._ssd_bytes and not account.lacks(nbytes)
        if not wanted or not self.make_room(nbytes):
            inventory.orders.append(Unlink(space, hash, kind))
            return None
        entry = inventory.add(space, hash, kind, nbytes, account)
        entry.checksum = checksum
        entry.last_use = last_use
        inventory.ssd_used_bytes += nbytes
        inventory.onto_ssd(entry)
        inventory.show(entry)
        inventory.counters.restored += 1
        return entry

    def file_busy(self, space: Space, hash: BlockHash) -> bool:
        """Whether the file of this hash is being written."""
        return (space, hash) in self._files
