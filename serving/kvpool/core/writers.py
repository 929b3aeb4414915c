"""How entries come in: reserved, written by a client, committed; or dropped on the way."""

from collections.abc import Sequence

from serving.errors import LedgerError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Entry, Grant, GrantStatus, Kind, Space, Unlink
from serving.kvpool.core.evictor import Evictor
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.quota_room import quota_room
from serving.kvpool.core.quotas import Account
from serving.kvpool.core.spills import Spills

_PRESENT = Grant(GrantStatus.PRESENT)
_REFUSED = {status: Grant(status) for status in (GrantStatus.FULL, GrantStatus.QUOTA, GrantStatus.TOO_LARGE)}

MODEL_LEASE_S = 3600.0
"""A model image takes as long to write as its checkpoint to read; the end of its writer's connection ends it, too."""


class Writers:
    """Reservations and what becomes of them."""

    def __init__(self, inventory: Inventory, evictor: Evictor, spills: Spills) -> None:
        self._inventory = inventory
        self._evictor = evictor
        self._spills = spills
        self._allocate = inventory.allocator.allocate
        self._reservations = inventory.reservations
        self._capacity_bytes = inventory.allocator.capacity_bytes
        self._lease_s = inventory.settings.write_lease_s
        self._write_through = inventory.settings.write_through

    def reserve(
        self, space: Space, items: Sequence[tuple[BlockHash, int]], client: int, now: float, kind: Kind
    ) -> tuple[Grant, ...]:
        """Allocate space for the entries that are not stored yet; the others count as used.

        Args:
            items: hash and size [bytes] of each entry.
            client: number of the client that will write them.
        Returns: a grant for each item, in order.

        Raises: LedgerError for a size below one byte.
        """
        known = self._inventory.of(space)
        # Before any room is made, so that none of them leaves for the others; and in this order, because the tail of
        # a chain is to leave first, so its head must count as used last.
        for hash, _ in reversed(items):
            if (entry := known.get(hash)) is not None:
                self.use(entry, now)
        return tuple([self._reserve(space, hash, nbytes, client, now, kind) for hash, nbytes in items])

    def _reserve(self, space: Space, hash: BlockHash, nbytes: int, client: int, now: float, kind: Kind) -> Grant:
        if nbytes < 1:
            raise LedgerError(f"an entry of {nbytes} bytes")
        inventory = self._inventory
        if hash in inventory.of(space):
            self.count_present()
            return _PRESENT
        account = inventory.accounts.of(space.namespace)
        entry = self.admit(space, account, hash, nbytes, client, now, kind)
        if isinstance(entry, GrantStatus):
            return _REFUSED[entry]
        self._reservations.add(entry, client, now + (self._lease_s if kind is Kind.CONTEXT else MODEL_LEASE_S))
        return Grant(GrantStatus.GRANTED, entry.version, inventory.base_offset + entry.offset)

    def use(self, entry: Entry, now: float) -> None:
        """Count a request to write an entry that is stored or being written as a use of it."""
        if entry.shown:
            self._inventory.touch_one(entry, now)

    def count_present(self) -> None:
        """Count an entry that a client need not write, since it is stored."""
        self._inventory.counters.present += 1

    def admit(
        self,
        space: Space,
        account: Account,
        hash: BlockHash,
        nbytes: int,
        client: int,
        now: float,
        kind: Kind = Kind.CONTEXT,
    ) -> Entry | GrantStatus:
        """A new entry that this client writes, in an extent of its own, until it is booked, or ends with `finish`.

        Args:
            account: of the space's namespace.
        Returns: the entry, or why there is none.
        """
        if nbytes > self._capacity_bytes:
            return self._refuse(GrantStatus.TOO_LARGE)
        if account.quota_bytes and not quota_room(self._inventory, account, nbytes):
            return self._refuse(GrantStatus.QUOTA)
        offset = self._allocate(nbytes)
        if offset is None:
            offset = self._evictor.extent(nbytes, now)
            if offset is None:
                return self._refuse(GrantStatus.FULL)
        return self._inventory.add(space, hash, kind, nbytes, account, offset, client)

    def commit(self, version: int, checksum: int, client: int, now: float) -> bool:
        """Make an entry visible. False: this client does not have it reserved."""
        inventory = self._inventory
        entry = inventory.by_version.get(version)
        if entry is None or entry.writer != client:
            return False
        self._reservations.end(entry)
        if entry.hidden:  # its namespace was deleted meanwhile
            inventory.unpinned(entry)
            return False
        self.finish(entry, now, checksum)
        return True

    def finish(self, entry: Entry, now: float, checksum: int = 0) -> None:
        """Finish an admitted write: lookups find the entry."""
        inventory = self._inventory
        entry.writer = None
        if checksum:
            entry.checksum = checksum
        entry.last_use = now
        inventory.into_dram(entry)
        inventory.show(entry)
        counters = inventory.counters
        counters.puts += 1
        counters.put_bytes += entry.nbytes
        if self._write_through:
            self._spills.write_through(entry)

    def abort(self, version: int, client: int) -> None:
        """Drop one reservation, if this client has it."""
        entry = self._inventory.by_version.get(version)
        if entry is not None and entry.writer == client:
            self._drop(entry)

    def client_gone(self, client: int) -> None:
        """Drop all reservations of a client."""
        for entry in self._reservations.of(client):
            self._drop(entry)

    def expire(self, now: float) -> None:
        """End reservations whose writers took too long: their bytes are dropped, and other clients may write the entry.

        Their room stays reserved until they commit, abort or disconnect. A writer that was stopped in the middle of a
        copy continues when it wakes, and no process that computes with weights would notice its bytes there.
        """
        for entry in self._reservations.take_due(now):
            self._inventory.counters.reservations_expired += 1
            if not entry.hidden:
                self._inventory.hide(entry)

    def restore(
        self, space: Space, hash: BlockHash, kind: Kind, nbytes: int, checksum: int, last_use: float
    ) -> int | None:
        """Take over an entry whose file was found at the start. Call it in order of last use, the oldest first.

        Returns: its version; None if it is not taken over. Then the ledger orders the removal of its file, unless a
            newer copy uses the file's name: the caller removes no file itself.
        """
        inventory = self._inventory
        known = inventory.of(space).get(hash)
        if self._spills.file_busy(space, hash) or (known is not None and known.on_ssd):
            return None
        account = inventory.accounts.of(space.namespace)
        wanted = known is None and 0 < nbytes <= inventory.settings.ssd_bytes and not account.lacks(nbytes)
        if not wanted or not self._spills.make_room(nbytes):
            inventory.orders.append(Unlink(space, hash, kind))
            return None
        entry = inventory.add(space, hash, kind, nbytes, account)
        entry.checksum = checksum
        entry.last_use = last_use
        inventory.ssd_used_bytes += nbytes
        inventory.onto_ssd(entry)
        inventory.show(entry)
        inventory.counters.restored += 1
        return entry.version

    def _drop(self, entry: Entry) -> None:
        self._reservations.end(entry)
        if entry.hidden:
            self._inventory.unpinned(entry)
        else:
            self._inventory.hide(entry)

    def _refuse(self, status: GrantStatus) -> GrantStatus:
        refused = self._inventory.counters.refused
        refused[status.value] = refused.get(status.value, 0) + 1
        return status
