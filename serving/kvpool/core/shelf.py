"""A memory server's entries of one space, block by block, for a driver that has the whole pool in its own process.

The four requests of a client (lookup, release, reserve, commit) are a few calls, with the same effect on the ledger.
They omit what only messages need: responses, clients' leases and reservations with their time limits, and the counts of
hashes looked up and missed. The driver ends leases and writes itself and enforces the limits.

    entry = shelf.entries.get(hash)              present, if `entry.shown`
    shelf.use(entry, now)                        a lookup has found it
    shelf.lend(entry) ... shelf.give_back(entry) not evicted in between
    shelf.use_known(hash, now)                   reserve: first of all, of a chain the last block first
    entry = shelf.admit(hash, nbytes, ...)       reserve
    shelf.finish(entry, now)                     commit; of a chain the last block first
"""

from collections.abc import Callable, Mapping, Sequence

from serving.ids import BlockHash
from serving.kvpool.core.entries import Entry
from serving.kvpool.core.entry import GrantStatus, Space
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.promotions import Promotions
from serving.kvpool.core.writers import Writers


class Shelf:
    """One space of one server. Read `entries`, never change them."""

    __slots__ = (
        "_account",
        "_counters",
        "_inventory",
        "_leases",
        "_promotions",
        "_touch",
        "_writers",
        "entries",
        "finish",
        "lend",
        "space",
    )

    def __init__(self, space: Space, inventory: Inventory, writers: Writers, promotions: Promotions) -> None:
        self.space = space
        self.entries: Mapping[BlockHash, Entry] = inventory.home(space)
        """What is there now, by hash, with those being written (not `shown`)."""
        self._inventory = inventory
        self._counters = inventory.counters
        self._leases = inventory.leases
        self._writers = writers
        self._promotions = promotions
        self._touch = inventory.touch_one
        self._account = inventory.accounts.of(space.namespace)
        self.lend: Callable[[Entry], None] = inventory.leases.lend
        """It stays where it is until `give_back`, which must come once for every `lend`."""
        self.finish: Callable[[Entry, float], None] = writers.finish
        """What was admitted is there: lookups find it."""

    def use(self, entry: Entry, now: float) -> None:
        """A lookup found it. Of a chain the last block first: the first of them counts as used last."""
        entry.hits += 1
        counters = self._counters
        counters.lookups += 1
        if entry.in_dram:
            counters.hits_dram += 1
        else:
            counters.hits_ssd += 1
        self._touch(entry, now)

    def give_back(self, entry: Entry) -> None:
        """End of one `lend`. The entry may already be hidden from lookups."""
        self._leases.give_back(entry)
        self._inventory.unpinned(entry)

    def bring(self, entries: Sequence[Entry], now: float) -> None:
        """Load entries into DRAM; they must be lent until then. Entries in DRAM stay as they are.

        May evict other entries, and order loads and spills. `in_dram` and `found` report the result.

        Args:
            entries: of a chain, in its order.
        """
        self._inventory.touch(entries[::-1], now)
        for entry in entries:
            self._promotions.want(entry, now)

    def use_known(self, hash: BlockHash, now: float) -> None:
        """Count a wish to write as a use, if the entry is there."""
        known = self.entries.get(hash)
        if known is not None:
            self._writers.use(known, now)

    def admit(self, hash: BlockHash, nbytes: int, client: int, now: float) -> Entry | GrantStatus:
        """Room for a new context entry, to be completed with `finish`. May evict other entries and order spills.

        Returns: the entry, or PRESENT, FULL, QUOTA, TOO_LARGE.
        """
        if hash in self.entries:
            self._writers.count_present()
            return GrantStatus.PRESENT
        return self._writers.admit(self.space, self._account, hash, nbytes, client, now)
