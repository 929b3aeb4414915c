"""Every entry of a memory server, and where it lies: the one place where an entry changes its tier.

It decides nothing. It moves entries through their states (see `entries.py`) and keeps everything that is derived from
them true: the map that lookups use, extents, the order of eviction, SSD bytes, accounts, counters.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from serving.ids import BlockHash
from serving.policy.pool.entries import Entry
from serving.policy.pool.entry import Kind, Order, Space, Unlink
from serving.policy.pool.eviction import make_policy
from serving.policy.pool.leases import LeaseBook, ReservationBook
from serving.policy.pool.manager_stats import Counters
from serving.policy.pool.quotas import AccountBook
from serving.policy.pool.settings import ManagerSettings
from serving.policy.pool.slab_allocator import SlabAllocator

_NOTHING: dict[BlockHash, Entry] = {}
_MIB = 1 << 20
_SLABS = 64
"""A small region gets smaller slabs, so that some block sizes do not take all of it from the others."""
_LEAST_SLAB_BYTES = 64 << 10


class Inventory:
    """The entries with their indices."""

    def __init__(self, settings: ManagerSettings, first_version: int) -> None:
        """
        Args:
            first_version: of the first entry; each further one gets the next number.
        Raises: LedgerError if the region is smaller than a page or the eviction policy has an unknown name.
        """
        self.settings = settings
        self.base_offset = settings.base_offset
        self.counters = Counters()
        self.accounts = AccountBook()
        self.leases = LeaseBook()
        self.reservations = ReservationBook()
        slab_bytes = min(settings.slab_bytes, max(_LEAST_SLAB_BYTES, settings.capacity_bytes // _SLABS))
        self.allocator = SlabAllocator(settings.capacity_bytes, slab_bytes)
        self.policy = make_policy(settings.eviction)
        self.orders: list[Order] = []
        self.by_version: dict[int, Entry] = {}
        self.at: dict[int, Entry] = {}  # offset -> the entry whose extent begins there
        self.ssd_order: OrderedDict[int, Entry] = OrderedDict()  # entries on SSD, the one used longest ago first
        self.ssd_used_bytes = 0
        self.shown = 0  # entries that lookups find
        self.hidden = 0
        self.models: dict[int, Entry] = {}  # those shown that are models
        self._spaces: dict[Space, dict[BlockHash, Entry]] = {}
        self._next_version = first_version

    def of(self, space: Space) -> dict[BlockHash, Entry]:
        """Entries of a space, with those being written. Read only."""
        return self._spaces.get(space, _NOTHING)

    def spaces(self) -> dict[Space, dict[BlockHash, Entry]]:
        """All spaces that have entries. Read only."""
        return self._spaces

    def visible(self, version: int) -> Entry | None:
        """The entry, if lookups find it."""
        entry = self.by_version.get(version)
        return entry if entry is not None and entry.found is not None else None

    # Coming

    def add(self, space: Space, hash: BlockHash, kind: Kind, nbytes: int) -> Entry:
        """A new entry, with no bytes anywhere yet, and not visible."""
        entry = Entry(self._next_version, space, hash, kind, nbytes, self.accounts.of(space.namespace))
        self._next_version += 1
        self.by_version[entry.version] = entry
        known = self._spaces.get(space)
        if known is None:
            known = self._spaces[space] = {}
        known[hash] = entry
        return entry

    def give_extent(self, entry: Entry, offset: int) -> None:
        """It has an extent now, whose bytes mean nothing yet."""
        entry.offset = offset
        self.at[offset] = entry
        entry.account.dram_bytes += entry.nbytes

    def into_dram(self, entry: Entry) -> None:
        """The bytes in its extent are right: readers may have them."""
        entry.in_dram = True
        entry.publish(self.base_offset)
        # Every context block is about as many tokens to compute again; a model is as many bytes to read again.
        cost = float(entry.nbytes) if entry.kind is Kind.MODEL else float(_MIB)
        self.policy.insert(entry.version, entry.nbytes, cost)

    def onto_ssd(self, entry: Entry) -> None:
        """Its file is complete. The bytes were counted when the file was begun."""
        entry.on_ssd = True
        entry.account.ssd_bytes += entry.nbytes
        self.ssd_order[entry.version] = entry
        if not entry.in_dram:
            entry.publish(self.base_offset)

    def show(self, entry: Entry) -> None:
        """Its bytes are somewhere by now, and lookups find it from here on."""
        self.shown += 1
        entry.account.order[entry.version] = None
        if entry.kind is Kind.MODEL:
            self.models[entry.version] = entry

    # Being used

    def touch(self, entries: Sequence[Entry], now: float) -> None:
        """These were used; the last of them counts as used last."""
        ssd_order = self.ssd_order
        for entry in entries:
            entry.last_use = now
            if entry.account.quota_bytes:
                entry.account.order.move_to_end(entry.version)
            if entry.on_ssd:
                ssd_order.move_to_end(entry.version)
            elif entry.spilling:
                entry.used_since = True
        self.policy.touch([entry.version for entry in entries])

    def unpinned(self, entry: Entry) -> None:
        """Something that kept its extent has ended."""
        if entry.hidden:
            self._settle(entry)
        elif entry.in_dram and not entry.pinned:
            self.policy.put_back(entry.version)

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """See `AccountBook`. An account that had no quota has not followed uses until now: its order is made anew."""
        unordered = [a for a in self.accounts.accounts().values() if not a.quota_bytes]
        self.accounts.set_quotas(quotas)
        for account in unordered:
            if account.quota_bytes:
                by_use = sorted(account.order, key=lambda version: self.by_version[version].last_use)
                account.order = OrderedDict.fromkeys(by_use)

    # Leaving

    def leave_dram(self, entry: Entry) -> None:
        """Give up its extent; without a copy on SSD the entry is gone."""
        self.policy.remove(entry.version)
        entry.in_dram = False
        self.free_extent(entry)
        if entry.on_ssd:
            self.counters.evicted_to_ssd += 1
            entry.publish(self.base_offset)
        else:
            self.counters.evicted_dropped += 1
            self.hide(entry)

    def free_extent(self, entry: Entry) -> None:
        """Others may have its extent."""
        del self.at[entry.offset]
        self.allocator.free(entry.offset)
        entry.offset = -1
        if not entry.hidden:
            entry.account.dram_bytes -= entry.nbytes

    def leave_ssd(self, entry: Entry) -> None:
        """Give up its file; without a copy in DRAM the entry is gone."""
        self._unfile(entry)
        if not entry.in_dram:
            self.hide(entry)

    def hide(self, entry: Entry) -> None:
        """No lookup finds it any more. Its file goes at once, its extent when nobody uses it."""
        known = self._spaces[entry.space]
        del known[entry.hash]
        if not known:
            del self._spaces[entry.space]
        if entry.found is not None:
            self.shown -= 1
            del entry.account.order[entry.version]
            self.models.pop(entry.version, None)
        self.policy.remove(entry.version)
        if entry.on_ssd:
            self._unfile(entry)
        elif entry.spilling and not entry.leaving:
            entry.account.ssd_bytes -= entry.nbytes
        if entry.offset >= 0:
            entry.account.dram_bytes -= entry.nbytes
        entry.hidden = True
        entry.found = None
        self.hidden += 1
        self._settle(entry)

    def unlink(self, entry: Entry) -> None:
        """Order its file away."""
        self.ssd_used_bytes -= entry.nbytes
        self.orders.append(Unlink(entry.space, entry.hash, entry.kind))

    def _unfile(self, entry: Entry) -> None:
        entry.on_ssd = False
        entry.account.ssd_bytes -= entry.nbytes
        del self.ssd_order[entry.version]
        self.unlink(entry)

    def _settle(self, entry: Entry) -> None:
        used = entry.leases or entry.holders or entry.spilling or entry.loading or entry.writer is not None
        if not used:
            if entry.offset >= 0:
                self.free_extent(entry)
            del self.by_version[entry.version]
            self.hidden -= 1
