"""The ledger of one memory server: entries in DRAM and on SSD, their users, and the order of eviction. Pure.

It moves no bytes. Its driver copies, reads and writes files, and keeps time: every call takes `now`, which never
decreases. `take_orders` returns disk work, whose end the driver reports. Not thread-safe: use one lock around it.

Guarantees: the extent of an entry that is leased, held, reserved, or on its way to or from SSD is not reused; a leased
entry on SSD is not removed to make room there.

    inventory.py   entries and their tiers        evictor.py      eviction from DRAM      leases.py    time limits
    spills.py      DRAM to SSD, SSD's own limit   promotions.py   SSD to DRAM             quotas.py    namespaces
    claims.py      sessions and what they need    guards.py       what keeps it in DRAM
    prefetches.py  loads ahead of readers
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from serving.ids import BlockHash
from serving.kvpool.core.claim_actions import Claims
from serving.kvpool.core.entry import Entry, EntryView, Found, Grant, Kind, Order, Space, view_of
from serving.kvpool.core.evictor import Evictor
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.inventory_check import check_flows, check_inventory
from serving.kvpool.core.manager_stats import ManagerStats
from serving.kvpool.core.prefetches import PrefetchCount, Prefetches
from serving.kvpool.core.promotions import Promotions
from serving.kvpool.core.quota_room import trim_to_quotas
from serving.kvpool.core.quotas import NamespaceUsage
from serving.kvpool.core.server_settings import ManagerSettings
from serving.kvpool.core.shelf import Shelf
from serving.kvpool.core.slab_allocator import Fragmentation
from serving.kvpool.core.spills import Spills
from serving.kvpool.core.writers import Writers
from serving.values.kv_changes import KvChanges

__all__ = ["EntryView", "ManagerSettings", "ManagerStats", "MemoryManager", "NamespaceUsage"]

_PACE_S = 0.02
"""Pause between two ticks while memory is short: disk and readers need some time to change anything."""


class MemoryManager:
    """See the module. `client` is the booking number of a connection, `version` names one copy of one entry."""

    def __init__(self, settings: ManagerSettings, first_version: int = 1, changes: KvChanges | None = None) -> None:
        """
        Args:
            first_version: versions count up from here; a number that no earlier incarnation has reached.
            changes: see `Inventory`.
        Raises: LedgerError if the region is smaller than a page or the eviction policy has an unknown name.
        """
        self.settings = settings
        self._inventory = Inventory(settings, first_version, changes)
        self._counters = self._inventory.counters
        self._leases = self._inventory.leases
        self._spills = Spills(self._inventory)
        self._evictor = Evictor(self._inventory, self._spills)
        self._writers = Writers(self._inventory, self._evictor, self._spills)
        self._promotions = Promotions(self._inventory, self._evictor)
        self.claims = Claims(self._inventory, self._spills, self._promotions)
        """Claims and hints."""
        self._prefetches = Prefetches(self._inventory, self._promotions)
        self._claims_due = self._inventory.guards.due
        self._held = 0
        self._last_tick = float("-inf")

    # Writers

    def reserve(
        self,
        space: Space,
        items: Sequence[tuple[BlockHash, int]],
        client: int,
        now: float,
        kind: Kind = Kind.CONTEXT,
    ) -> tuple[Grant, ...]:
        """Reserve room for new entries, to be committed within `write_lease_s`; models may take an hour.

        Entries that exist already count as used now: the head of a chain must not be evicted for its tail. May evict
        entries and order spills.

        Args:
            items: hash and size [bytes] of each.
        Returns: one grant per item. FULL may have started spills, so that another attempt a moment later succeeds.
        Raises: LedgerError for a size below one byte.
        """
        self._expire(now)
        return self._writers.reserve(space, items, client, now, kind)

    def disk_hangs(self, hangs: bool) -> None:
        """Whether a write has been under way for too long: then what must leave memory is dropped from now on."""
        self._spills.hanging = hangs

    def commit(self, version: int, checksum: int, client: int, now: float) -> bool:
        """The bytes are written: lookups find the entry from now on.

        Of a chain, commit the last block first: what is committed last is evicted last.

        Returns: False if this client does not have it reserved, or not any more: the bytes are dropped.
        """
        self._expire(now)
        return self._writers.commit(version, checksum, client, now)

    def abort(self, version: int, client: int, now: float) -> None:
        """Return reserved room. Ignored if this client does not have it reserved."""
        self._expire(now)
        self._writers.abort(version, client)
        self._room_may_be_free(now)

    # Readers

    def lookup(
        self, space: Space, hashes: Sequence[BlockHash], client: int, now: float, lease_s: float | None = None
    ) -> tuple[Found | None, ...]:
        """Which of these are there? Each one found is leased to the client, or its lease becomes longer.

        The first of them counts as used last: of a chain the tail is evicted first.

        Args:
            lease_s: None = the setting.
        Returns: one item per hash, None = absent.
        """
        known, base_offset = self._inventory.of(space), self._inventory.base_offset
        answers: list[Found | None] = []
        hits: list[Entry] = []
        on_ssd = 0
        for hash in hashes:
            entry = known.get(hash)
            if entry is None or not entry.shown:
                answers.append(None)
                continue
            answers.append(entry.answer or entry.as_found(base_offset))
            hits.append(entry)
            entry.hits += 1
            if not entry.in_dram:
                on_ssd += 1
        counters = self._counters
        counters.lookups += len(answers)
        counters.misses += len(answers) - len(hits)
        counters.hits_ssd += on_ssd
        counters.hits_dram += len(hits) - on_ssd
        if hits:
            hits.reverse()
            self._inventory.touch(hits, now)
            self._leases.grant(hits, client, now + (self.settings.lease_s if lease_s is None else lease_s))
        return tuple(answers)

    def promote(self, versions: Sequence[int], client: int, now: float) -> None:
        """Load entries into DRAM, and lease them to the client. Unknown ones are ignored.

        May evict other entries, and order loads and spills. `pending` and `found` report the result.
        """
        self._expire(now)
        wanted = [entry for entry in map(self._inventory.visible, versions) if entry is not None]
        self._inventory.touch(wanted[::-1], now)
        self._leases.grant(wanted, client, now + self.settings.lease_s)
        for entry in wanted:
            self._promotions.want(entry, now)

    def prefetch(self, space: Space, hashes: Sequence[BlockHash], now: float) -> PrefetchCount:
        """Load blocks of a prefix from SSD before a reader asks for them: a bounded number of bytes, without a lease.

        Blocks that are here count as used now. May evict other entries, and order loads and spills.
        """
        self._expire(now)
        return self._prefetches.want(space, hashes, now)

    def found(self, version: int) -> Found | None:
        """Result of a lookup for this copy now; None = removed."""
        entry = self._inventory.visible(version)
        return entry.as_found(self._inventory.base_offset) if entry is not None else None

    def pending(self, version: int) -> bool:
        """Whether its load to DRAM is waiting or running."""
        return self._promotions.pending(version)

    def release(self, versions: Sequence[int], client: int, now: float) -> None:
        """Leases of this client that it needs no more. Those that it does not have are passed over."""
        for version in versions:
            entry = self._inventory.by_version.get(version)
            if entry is not None and self._leases.release(entry, client):
                self._inventory.unpinned(entry)
        self._room_may_be_free(now)

    def hold(self, version: int, holder: int, now: float) -> bool:
        """Keep an entry in DRAM at its place, since a process maps it. Returns: False if it is not in DRAM."""
        entry = self._inventory.visible(version)
        if entry is None or not entry.in_dram:
            return False
        if entry.holders is None:
            entry.holders = set()
            self._held += 1
        entry.holders.add(holder)
        return True

    def unhold(self, version: int, holder: int, now: float) -> None:
        """End of `hold`; counts as a use of a model. Ignored if there is no hold."""
        entry = self._inventory.by_version.get(version)
        if entry is None or entry.holders is None or holder not in entry.holders:
            return
        entry.holders.remove(holder)
        if not entry.holders:
            entry.holders = None
            self._held -= 1
        if entry.kind is Kind.MODEL and not entry.hidden:
            self._inventory.touch((entry,), now)
        self._inventory.unpinned(entry)
        self._room_may_be_free(now)

    def client_gone(self, client: int, now: float) -> None:
        """End the leases and reservations of a closed connection. Holds stay; they belong to processes."""
        self._writers.client_gone(client)
        self.release(self._leases.versions_of(client), client, now)

    def distrust(self, version: int, now: float) -> bool:
        """Hide an entry with wrong bytes, which is freed when nobody uses it. Returns: False if it is unknown."""
        entry = self._inventory.visible(version)
        if entry is None:
            return False
        self._counters.distrusted += 1
        self._inventory.hide(entry)
        return True

    def remove(self, version: int, now: float) -> bool:
        """Remove an entry that was moved to another server, unless it is leased or held.

        Returns: whether it was removed.
        """
        entry = self._inventory.visible(version)
        if entry is None or entry.leases or entry.holders:
            return False
        self._counters.moved += 1
        self._inventory.hide(entry)
        return True

    # Background

    def tick(self, now: float) -> None:
        """Let time pass: expiries, evictions between the water marks, promotions that waited for room."""
        self._last_tick = now
        self._expire(now)
        trim_to_quotas(self._inventory)
        self._evictor.relieve(now)
        self._promotions.retry(now)
        self._prefetches.go_on(now)
        self._spills.catch_up()

    def next_tick(self, now: float) -> float | None:
        """When `tick` is due; None = time alone changes no state. Valid until the next call of any other method."""
        due = self._leases.next_due
        promotions, prefetches = self._promotions, self._prefetches
        reserved, clearing = self._inventory.reservations.next_due, self._evictor.clearing_until
        for time in (reserved, promotions.next_due, prefetches.next_due, clearing, self.claims.next_due):
            if time is not None and (due is None or time < due):
                due = time
        if self._evictor.pressed or len(promotions) or len(prefetches) or self._spills.waiting:
            paced = self._last_tick + _PACE_S
            due = paced if due is None or paced < due else due
        return max(now, due) if due is not None else None

    def take_orders(self) -> tuple[Order, ...]:
        """Orders for the disk. Those of one (space, hash) must be done in the order given, over all calls."""
        if not self._inventory.orders:
            return ()
        orders = tuple(self._inventory.orders)
        self._inventory.orders.clear()
        return orders

    def spilled(self, version: int, ok: bool, now: float) -> None:
        """Report the end of a spill.

        Args:
            ok: the file is complete; else there is no file, and an entry that was leaving DRAM is dropped.
        Raises: LedgerError if no spill of this version is running.
        """
        self._spills.finish(version, ok)
        self._room_may_be_free(now)

    def loaded(self, version: int, ok: bool, now: float, *, unreadable: bool = False) -> None:
        """Report the end of a load.

        Args:
            ok: the bytes are in place and verified; else the entry is removed for good.
            unreadable: the disk could not read just now: the entry stays.
        Raises: LedgerError if no load of this version is running.
        """
        self._promotions.finish(version, ok, unreadable=unreadable)
        self._prefetches.finished(version)
        self._room_may_be_free(now)

    def restore(
        self, space: Space, hash: BlockHash, kind: Kind, nbytes: int, checksum: int, last_use: float, now: float
    ) -> int | None:
        """Take over an entry whose file was found at the start; see `Writers.restore`."""
        return self._writers.restore(space, hash, kind, nbytes, checksum, last_use)

    def delete_namespace(self, namespace: str, now: float) -> tuple[int, int]:
        """Hide all entries of a namespace at once; writes in progress are dropped at their commit.

        Returns: bytes, each tier counted, and committed entries.
        """
        inventory = self._inventory
        account = inventory.accounts.of(namespace)
        nbytes, entries = account.dram_bytes + account.ssd_bytes, len(account.shown)
        for space in [space for space in inventory.spaces() if space.namespace == namespace]:
            for entry in list(inventory.of(space).values()):
                inventory.hide(entry)
        self.claims.book.drop(namespace)
        self._counters.deleted += entries
        return nbytes, entries

    def set_quotas(self, quotas: Mapping[str, int]) -> None:
        """Limits of what namespaces may hold here, both tiers together [bytes]; absent or 0 = none.

        A namespace that holds more shrinks at the next `tick`.
        """
        self._inventory.set_quotas(quotas)

    # In one process

    def shelf(self, space: Space) -> Shelf:
        """Entries of one space, block by block, for a driver that needs no wire. Keep it: it stays good."""
        return Shelf(space, self._inventory, self._writers, self._promotions)

    # Knowledge

    def entries(self, after: int = 0) -> Iterator[EntryView]:
        """Committed entries with versions above `after`, in order of version. Change nothing while iterating."""
        for version, entry in self._inventory.by_version.items():
            if version > after and entry.shown:
                yield view_of(entry, self._inventory.base_offset)

    def models(self) -> tuple[EntryView, ...]:
        """Committed models. O(models)."""
        return tuple(view_of(entry, self._inventory.base_offset) for entry in self._inventory.models.values())

    def usage(self) -> dict[str, NamespaceUsage]:
        """Holdings of each namespace, without empty ones."""
        return self._inventory.accounts.usage()

    def fragmentation(self) -> Fragmentation:
        """Where the bytes of the region are now. O(entries)."""
        return self._inventory.allocator.fragmentation()

    @property
    def dram_used_bytes(self) -> int:
        """Bytes of DRAM in use, without the cost of `stats`."""
        return self._inventory.allocator.charged_bytes

    @property
    def dram_capacity_bytes(self) -> int:
        """Bytes of DRAM in all."""
        return self._inventory.allocator.capacity_bytes

    def stats(self) -> ManagerStats:
        """Counters, copied, and gauges."""
        inventory = self._inventory
        return ManagerStats(
            counters=replace(self._counters, refused=dict(self._counters.refused)),
            dram_capacity_bytes=inventory.allocator.capacity_bytes,
            dram_used_bytes=inventory.allocator.charged_bytes,
            ssd_capacity_bytes=self.settings.ssd_bytes,
            ssd_used_bytes=inventory.ssd_used_bytes,
            entries=inventory.shown,
            models=len(inventory.models),
            leased=self._leases.leased,
            held=self._held,
            writing=len(inventory.reservations),
            spilling=self._spills.under_way,
            loading=self._promotions.under_way,
            waiting=len(self._promotions),
            hidden=inventory.hidden,
            retained_bytes=inventory.guards.retained_bytes,
            pinned_bytes=inventory.guards.pinned_bytes,
        )

    def check(self) -> None:
        """Prove that the ledger balances. O(entries). Raises: LedgerError if not."""
        check_inventory(self._inventory)
        check_flows(self._inventory, self._spills, self._promotions, self._held)
        self.claims.check()
        self._prefetches.check()

    def _expire(self, now: float) -> None:
        due = self._leases.next_due
        if due is not None and due <= now:
            for entry in self._leases.expire(now):
                self._inventory.unpinned(entry)
            self._counters.leases_expired = self._leases.expired
        if self._claims_due and self._claims_due[0][0] <= now:
            self.claims.expire(now)
        self._writers.expire(now)

    def _room_may_be_free(self, now: float) -> None:
        if len(self._promotions):
            self._promotions.retry(now)
        if len(self._prefetches):
            self._prefetches.go_on(now)
