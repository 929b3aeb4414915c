"""Writes to the SSD tier: when they start, how room for them is made, and what follows their end.

The file of an entry is named by its hash. While it is being written, no other copy of the same hash may use that file:
a successor of a hidden entry waits until the write is complete and the removal of the file is ordered.
"""

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum

from serving.errors import LedgerError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Entry, Space, Spill
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
        self._idle: OrderedDict[int, Entry] = OrderedDict()  # claimed ones, copied while the disk has nothing to write
        self._demoted: OrderedDict[int, float] = OrderedDict()  # version -> when it was asked to leave
        self.hanging = False
        """The disk hangs in a write: no more orders are given."""

    @property
    def waiting(self) -> bool:
        """Whether a copy that is owed could be written now."""
        return bool(self._later or self._idle or self._demoted) and not self.under_way

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
        for entry in map(inventory.by_version.__getitem__, inventory.ssd_order):
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
        moved: dict[int, Entry] = {}
        for entry in victims:
            while entry.version in moved:
                entry = moved[entry.version]
            victim = self._instead(entry)
            if victim is not entry:
                inventory.ssd_order.swap(entry.version, victim.version)
                moved[victim.version] = entry
            inventory.counters.evicted_from_ssd += 1
            inventory.leave_ssd(victim)
        return True

    def _instead(self, entry: Entry) -> Entry:
        """The file of its namespace that leaves in its place: one that is not claimed, if there is any of its size."""
        by_version, files = self._inventory.by_version, self._inventory.ssd_own
        own = files.get(entry.account)
        if own is None:
            return entry
        if not entry.account.claims:
            del files[entry.account]
            return entry

        def usable(version: int) -> bool:
            one = by_version[version]
            return not one.leases and not one.loading and one.nbytes == entry.nbytes

        version = own.first(usable)
        return entry if version is None else by_version[version]

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

    def copy_when_idle(self, entries: Iterable[Entry]) -> None:
        """Copy entries to SSD one by one while nothing else is written, so that they may leave memory at once."""
        if self._ssd_bytes:
            self._idle.update((one.version, one) for one in entries if one.in_dram and not (one.on_ssd or one.spilling))

    def demote(self, entry: Entry, now: float) -> SpillStart:
        """Move an entry from DRAM to SSD: its extent is freed once the copy is complete.

        Returns: BUSY = that starts later, unless it is used until then.
        """
        start = SpillStart.STARTED
        if entry.on_ssd:
            self._inventory.leave_dram(entry)
        else:
            start = self.start(entry, leaving=True)
            if start is SpillStart.BUSY:
                self._demoted[entry.version] = now
        return start

    def catch_up(self) -> None:
        """Start spills that were deferred: those of write-through, of entries to demote, then of claimed entries."""
        self._write_owed()
        while self._demoted and self.under_way < self._limit:
            version, since = self._demoted.popitem(last=False)
            entry = self._inventory.visible(version)
            if entry is not None and entry.in_dram and not entry.pinned and entry.last_use <= since:
                self.demote(entry, since)
        while self._idle and not self.under_way:
            _version, entry = self._idle.popitem(last=False)
            if (
                self._room_for_copy(entry)
                and entry.claims
                and entry.in_dram
                and not (entry.on_ssd or entry.spilling or entry.hidden)
            ):
                self.write_through(entry)

    def _room_for_copy(self, entry: Entry) -> bool:
        """Whether a copy of a claimed entry costs no other claimed one and no other namespace a place on SSD."""
        inventory = self._inventory
        own = inventory.ssd_own.get(entry.account) if inventory.alone else None
        return inventory.ssd_used_bytes + entry.nbytes <= self._ssd_bytes or (own is not None and own.spare)

    def _write_owed(self) -> None:
        for _ in range(len(self._later)):
            if self.under_way >= self._limit:
                return
            _version, entry = self._later.popitem(last=False)
            if entry.in_dram and not (entry.on_ssd or entry.spilling or entry.hidden):
                self.write_through(entry)

    def file_busy(self, space: Space, hash: BlockHash) -> bool:
        """Whether the file of this hash is being written."""
        return (space, hash) in self._files
