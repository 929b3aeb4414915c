"""Every entry of a memory server and its location; the only module in which an entry changes its tier.

It decides no policy. It moves entries through their states (see `entry.py`) and updates all derived data: the map
that lookups use, extents, the order of eviction, SSD bytes, accounts, counters.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from serving.ids import BlockHash
from serving.kvpool.core.entry import Entry, Kind, Order, Space, Unlink
from serving.kvpool.core.eviction import make_policy
from serving.kvpool.core.guards import PIN, Guards
from serving.kvpool.core.leases import LeaseBook, ReservationBook
from serving.kvpool.core.manager_stats import Counters
from serving.kvpool.core.own_order import OwnFiles, OwnOrders
from serving.kvpool.core.queue_order import QueueOrder
from serving.kvpool.core.quotas import Account, AccountBook
from serving.kvpool.core.server_settings import ManagerSettings
from serving.kvpool.core.slab_allocator import SlabAllocator
from serving.values.kv_changes import CPU, STORAGE, BlocksRemoved, BlocksStored, KvChanges

_NOTHING: dict[BlockHash, Entry] = {}
_MIB = 1 << 20
_MODEL = Kind.MODEL
SLABS = 64
"""A small region gets smaller slabs, so that some block sizes do not take all of it from the others."""
_LEAST_SLAB_BYTES = 64 << 10


class Inventory:
    """The entries with their indices."""

    def __init__(self, settings: ManagerSettings, first_version: int, changes: KvChanges | None = None) -> None:
        """
        Args:
            first_version: of the first entry; each further one gets the next number.
            changes: gets every KV block that lookups find in a tier, or no longer do; None = nobody is interested.
        Raises: LedgerError if the region is smaller than a page or the eviction policy has an unknown name.
        """
        self.settings = settings
        self.base_offset = settings.base_offset
        self.counters = Counters()
        self.accounts = AccountBook()
        self.leases = LeaseBook()
        self.reservations = ReservationBook()
        slab_bytes = min(settings.slab_bytes, max(_LEAST_SLAB_BYTES, settings.capacity_bytes // SLABS))
        self.allocator = SlabAllocator(settings.capacity_bytes, slab_bytes, settings.quantum)
        self.policy = make_policy(settings.eviction)
        self.orders: list[Order] = []
        self.by_version: dict[int, Entry] = {}
        self.at: dict[int, Entry] = {}  # offset -> the entry whose extent begins there
        self.ssd_order = QueueOrder(moves=True)  # entries on SSD, the one used longest ago first
        self.ssd_own: dict[Account, OwnFiles] = {}  # the same of each namespace that claims
        self.own = OwnOrders(self.policy, self.by_version)
        self.alone = True
        """Whether one namespace has the server to itself, so that its claimed entries stay out of the order."""
        self.stays_from = 1
        """Guards from which an entry takes no part in the order: those of a pin, once several namespaces share it."""
        hooks = (self._unguarded, self._cool, self._reorder)
        self.guards = Guards(settings.claims, self.allocator.capacity_bytes, self.counters, self.by_version, *hooks)
        self.ssd_used_bytes = 0
        self.shown = 0  # entries that lookups find
        self.hidden = 0
        self.models: dict[int, Entry] = {}  # those shown that are models
        self._spaces: dict[Space, dict[BlockHash, Entry]] = {}
        self._homes: dict[Space, dict[BlockHash, Entry]] = {}  # every space ever seen: its map is always the same one
        self._last_space: Space | None = None
        self._last_home: dict[BlockHash, Entry] = {}
        self._next_version = first_version
        self.changes = changes

    def of(self, space: Space) -> dict[BlockHash, Entry]:
        """Entries of a space, with those being written. Read only."""
        return self._spaces.get(space, _NOTHING)

    def home(self, space: Space) -> dict[BlockHash, Entry]:
        """Entries of a space, as a map that stays current. Read only."""
        if space is self._last_space:  # nearly always: hashing a space takes longer than all the rest
            return self._last_home
        home = self._homes.get(space)
        if home is None:
            home = self._homes[space] = {}
        self._last_space, self._last_home = space, home
        return home

    def spaces(self) -> dict[Space, dict[BlockHash, Entry]]:
        """Entries by block hash, for each space (namespace and layout) that has any. Not to be modified."""
        return self._spaces

    def visible(self, version: int) -> Entry | None:
        """The entry, if lookups find it."""
        entry = self.by_version.get(version)
        return entry if entry is not None and entry.shown else None

    # Coming

    def add(
        self,
        space: Space,
        hash: BlockHash,
        kind: Kind,
        nbytes: int,
        account: Account,
        offset: int = -1,
        writer: int | None = None,
    ) -> Entry:
        """A new entry, not visible, without bytes.

        Args:
            offset: of its extent, if it has one. writer: the client that will fill it.
        """
        version = self._next_version
        self._next_version = version + 1
        home = self._last_home if space is self._last_space else self.home(space)
        if not home:
            self._spaces[space] = home
            if self.alone:
                self._share()
        entry = Entry(version, space, hash, kind, nbytes, account, offset, 0, writer)
        self.by_version[version] = home[hash] = entry
        if offset >= 0:
            self.at[offset] = entry
            account.dram_bytes += nbytes
        return entry

    def give_extent(self, entry: Entry, offset: int) -> None:
        """Give an entry an extent, whose bytes are not valid yet."""
        entry.offset = offset
        self.at[offset] = entry
        entry.account.dram_bytes += entry.nbytes

    def into_dram(self, entry: Entry) -> None:
        """The bytes in its extent are right: readers may have them."""
        entry.in_dram = True
        if self.changes is not None:
            self._tell(entry, CPU)
        if entry.answer is not None:
            entry.answer = None
        nbytes = entry.nbytes
        # Every context block is about as many tokens to compute again; a model is as many bytes to read again.
        self.policy.insert(entry.version, nbytes, nbytes if entry.kind is _MODEL else _MIB)
        if self.own:
            self.own.add(entry)

    def onto_ssd(self, entry: Entry) -> None:
        """Count an entry as on SSD: its file is complete. Its bytes were counted at the start of the write."""
        entry.on_ssd = True
        if self.changes is not None:
            self._tell(entry, STORAGE)
        entry.account.ssd_bytes += entry.nbytes
        self.ssd_order.insert(entry.version, 0, 0.0)
        if self.ssd_own and (own := self.ssd_own.get(entry.account)) is not None:
            own.of(entry).insert(entry.version, 0, 0.0)
        elif entry.claims:
            self._reorder(entry)
        if not entry.in_dram:
            entry.answer = None

    def show(self, entry: Entry) -> None:
        """Let lookups find an entry from here on: its bytes are somewhere by now."""
        entry.shown = True
        self.shown += 1
        account, version = entry.account, entry.version
        account.shown[version] = None
        if account.quota_bytes:
            account.order[version] = None
        if entry.kind is _MODEL:
            self.models[version] = entry
        if self.changes is not None:
            self._tell_all(entry, gone=False)

    # Being used

    def touch(self, entries: Sequence[Entry], now: float) -> None:
        """These were used; the last of them counts as used last."""
        for entry in entries:
            entry.last_use = now
            if entry.account.quota_bytes:
                entry.account.order.move_to_end(entry.version)
            if entry.on_ssd:
                self._use_file(entry)
            elif entry.spilling:
                entry.used_since = True
        self.policy.touch([entry.version for entry in entries])

    def touch_one(self, entry: Entry, now: float) -> None:
        """Touch one entry alone."""
        entry.last_use = now
        if entry.account.quota_bytes:
            entry.account.order.move_to_end(entry.version)
        if entry.on_ssd:
            self._use_file(entry)
        elif entry.spilling:
            entry.used_since = True
        self.policy.use(entry.version)

    def unpinned(self, entry: Entry) -> None:
        """Note the end of a use that kept an entry's extent."""
        if entry.hidden:
            self._settle(entry)
        elif entry.in_dram and entry.guards < self.stays_from and not entry.pinned:
            self.policy.put_back(entry.version)
            if self.own:
                self.own.put_back(entry)

    def _use_file(self, entry: Entry) -> None:
        self.ssd_order.use(entry.version)
        if self.ssd_own and (own := self.ssd_own.get(entry.account)) is not None:
            own.of(entry).use(entry.version)

    # Claims

    def _share(self) -> None:
        """From the second namespace on, claimed entries take part in the order that all share; see `own_order.py`."""
        spaces = iter(self._spaces)
        first = next(spaces).namespace
        if all(space.namespace == first for space in spaces):
            return
        self.alone, self.stays_from = False, PIN
        for account in self.accounts.accounts().values():
            for version in account.shown if account.retained_bytes else ():
                self._unguarded(self.by_version[version])

    def recount(self) -> None:
        """Find out whether a namespace has the server to itself by now. Ignored while entries are retained."""
        if not self.alone and not self.guards.retained_bytes:
            self.alone, self.stays_from = True, 1
            if self._spaces:
                self._share()

    def _unguarded(self, entry: Entry) -> None:
        if entry.in_dram and not entry.pinned and entry.guards < self.stays_from:
            self.policy.put_back(entry.version)
            if self.own:
                self.own.put_back(entry)

    def _cool(self, entry: Entry) -> None:
        self.policy.cool(entry.version)
        if self.own and entry.in_dram:
            self.own.add(entry)
        if entry.on_ssd:
            self.ssd_order.cool(entry.version)
            if (own := self.ssd_own.get(entry.account)) is not None:
                own.of(entry).cool(entry.version)

    def _reorder(self, entry: Entry) -> None:
        if entry.on_ssd:
            own = self.ssd_own.get(entry.account)
            if own is not None:
                own.reorder(entry)
            elif entry.claims:
                on_ssd = [one for one in map(self.by_version.__getitem__, entry.account.shown) if one.on_ssd]
                self.ssd_own[entry.account] = OwnFiles(sorted(on_ssd, key=lambda one: self.ssd_order.rank(one.version)))

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """See `AccountBook`. An account without a quota does not follow uses, so a new quota builds its order again."""
        unordered = [a for a in self.accounts.accounts().values() if not a.quota_bytes]
        self.accounts.set_quotas(quotas)
        for account in self.accounts.accounts().values():
            if not account.quota_bytes:
                account.order.clear()
            elif account in unordered:
                by_use = sorted(account.shown, key=lambda version: self.by_version[version].last_use)
                account.order = OrderedDict.fromkeys(by_use)

    # Leaving

    def leave_dram(self, entry: Entry) -> None:
        """Free its extent; without a copy on SSD the entry is removed."""
        self.policy.remove(entry.version)
        entry.in_dram = False
        if self.changes is not None:
            self._tell(entry, CPU, gone=True)
        self.free_extent(entry)
        if entry.on_ssd:
            self.counters.evicted_to_ssd += 1
            entry.answer = None
        else:
            self.counters.evicted_dropped += 1
            self.hide(entry)

    def make_way(self, entry: Entry, nbytes: int) -> int:
        """Evict an unused entry; its extent goes to another one of its size class.

        Returns: the extent's offset, to be given with `give_extent` at once.
        """
        offset, version = entry.offset, entry.version
        self.allocator.live[offset] = nbytes
        self.policy.remove(version)
        entry.in_dram = False
        if self.changes is not None:
            self._tell(entry, CPU, gone=True)
        entry.offset = -1
        entry.account.dram_bytes -= entry.nbytes
        if entry.on_ssd:
            self.counters.evicted_to_ssd += 1
            entry.answer = None
        else:
            self.counters.evicted_dropped += 1
            self._unfiled(entry)
            entry.hidden = True
            del self.by_version[version]
        return offset

    def free_extent(self, entry: Entry) -> None:
        """Others may have its extent."""
        del self.at[entry.offset]
        self.allocator.free(entry.offset)
        entry.offset = -1
        if not entry.hidden:
            entry.account.dram_bytes -= entry.nbytes

    def leave_ssd(self, entry: Entry) -> None:
        """Drop its file; without a copy in DRAM the entry is removed."""
        self._unfile(entry)
        if not entry.in_dram:
            self.hide(entry)

    def hide(self, entry: Entry) -> None:
        """Hide an entry from lookups. Its file is removed at once, its extent freed when it is unused."""
        self._unfiled(entry)
        self.policy.remove(entry.version)
        if entry.on_ssd:
            self._unfile(entry)
        elif entry.spilling and not entry.leaving:
            entry.account.ssd_bytes -= entry.nbytes
        if entry.offset >= 0:
            entry.account.dram_bytes -= entry.nbytes
        entry.hidden = True
        self.hidden += 1
        self._settle(entry)

    def unlink(self, entry: Entry) -> None:
        """Order its file away."""
        self.ssd_used_bytes -= entry.nbytes
        self.orders.append(Unlink(entry.space, entry.hash, entry.kind))

    def _unfiled(self, entry: Entry) -> None:
        """No map and no order by which it could be found or chosen has it any more."""
        space = entry.space
        home = self._last_home if space is self._last_space else self.home(space)
        del home[entry.hash]
        if not home:
            del self._spaces[space]
        if entry.shown:
            if self.changes is not None:
                self._tell_all(entry, gone=True)
            self.shown -= 1
            del entry.account.shown[entry.version]
            entry.account.order.pop(entry.version, None)
            if entry.kind is Kind.MODEL:
                del self.models[entry.version]
            if entry.claims:
                self.guards.gone(entry)
        entry.shown, entry.answer = False, None

    def _unfile(self, entry: Entry) -> None:
        entry.on_ssd = False
        if self.changes is not None:
            self._tell(entry, STORAGE, gone=True)
        entry.account.ssd_bytes -= entry.nbytes
        self.ssd_order.remove(entry.version)
        if self.ssd_own and (own := self.ssd_own.get(entry.account)) is not None:
            own.of(entry).remove(entry.version)
        self.unlink(entry)

    def _tell(self, entry: Entry, medium: str, *, gone: bool = False) -> None:
        """Note that an entry which lookups find is now in a tier, or no longer. Instances know its tokens, not we."""
        changes, space = self.changes, entry.space
        if changes is None or not entry.shown or entry.kind is _MODEL or space.namespace not in changes.namespaces:
            return
        if gone:
            changes.note(BlocksRemoved(medium, (entry.hash,), space))
        else:
            changes.note(BlocksStored(medium, (entry.hash,), scope=space))

    def _tell_all(self, entry: Entry, *, gone: bool) -> None:
        if entry.in_dram:
            self._tell(entry, CPU, gone=gone)
        if entry.on_ssd:
            self._tell(entry, STORAGE, gone=gone)

    def _settle(self, entry: Entry) -> None:
        used = entry.leases or entry.holders or entry.spilling or entry.loading or entry.writer is not None
        if not used:
            if entry.offset >= 0:
                self.free_extent(entry)
            del self.by_version[entry.version]
            self.hidden -= 1
