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
from types import MappingProxyType
from typing import NamedTuple

from serving.ids import BlockHash
from serving.kvpool.core.batch_write import NO_SERVER
from serving.kvpool.core.entry import Entry, GrantStatus, Space
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.prefix_find import is_better_copy
from serving.kvpool.core.promotions import Promotions
from serving.kvpool.core.ring import HashRing
from serving.kvpool.core.writers import Writers
from serving.values.pool_outcome import MissReason


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
        """Entries by hash, including those being written (not `shown`)."""
        self._inventory = inventory
        self._counters = inventory.counters
        self._leases = inventory.leases
        self._writers = writers
        self._promotions = promotions
        self._touch = inventory.touch_one
        self._account = inventory.accounts.of(space.namespace)
        self.lend: Callable[[Entry], None] = inventory.leases.lend
        """Pin an entry where it is until `give_back`, which must be called once for every `lend`."""
        self.finish: Callable[[Entry, float], None] = writers.finish
        """Mark an admitted entry as written: lookups find it."""

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

    def retry(self, now: float) -> bool:
        """After `give_back`: start loads that waited for room. Returns: False if none waits."""
        if not len(self._promotions):
            return False
        self._promotions.retry(now)
        return True

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


# Find and store over the shelves of many servers, for a driver that has the whole pool in its own process.
#
# `PrefixFind` and `BatchWrite` make the same decisions with messages in between; here a step is one call, fast enough
# for the pool of a supernode. The same history results in the same ledgers
# (`tests/virtual/core/test_memory_pool_machine.py`):
#
#   find     queries every reader of a block; all that is found counts as used, of a chain the first block last;
#            of several copies `is_better_copy` chooses; a prefix ends at its first gap
#   store    writes a block to its primary only; an existing entry counts as used; room is reserved from the first block
#            on, and the last block is committed first


class ShelfPlace(NamedTuple):
    """A place where a block may be."""

    entries: Mapping[BlockHash, Entry]
    shelf: Shelf
    server: str


FoundCopy = tuple[Shelf, Entry, str]
"""A block that was found, and its server. A plain tuple: one is made for each block of each lookup."""


class StoredRun(NamedTuple):
    """Result of a store.

    Attributes:
        stored: new entries. present: blocks that existed already.
        dropped: blocks that were not stored, by reason, in the words of `BatchWrite`.
        servers: those that received a request.
    """

    stored: int
    present: int
    dropped: dict[str, int]
    servers: tuple[str, ...]


class _Places(dict[str | None, tuple[ShelfPlace, ...]]):
    """The place at each server that responds."""

    def __missing__(self, name: str | None) -> tuple[ShelfPlace, ...]:
        return ()


class ShelfRoutes:
    """Where the blocks of one space may be; valid until the ring or the set of responding servers changes.

    Args:
        shelves: of the servers that respond.
        steady: every entry is with its primary, so that other readers need no query.
        silent: why other servers do not respond; absent = they are unreachable.
    """

    def __init__(
        self,
        ring: HashRing,
        shelves: Mapping[str, Shelf],
        steady: bool,
        silent: Mapping[str, MissReason] = MappingProxyType({}),
    ) -> None:
        self._ring = ring
        self._silent = silent
        self._steady = steady
        self._at = _Places({name: (ShelfPlace(shelf.entries, shelf, name),) for name, shelf in shelves.items()})

    def find(self, hashes: Sequence[BlockHash], now: float) -> list[FoundCopy]:
        """The longest prefix of these blocks in the pool, the last block first.

        All found blocks count as used, in the prefix or not. They are not lent.
        """
        run: list[FoundCopy] = []
        for block, places in zip(reversed(hashes), reversed(self._readers(hashes)), strict=True):
            best: Entry | None = None
            for entries, shelf, server in places:  # the likeliest holder first
                entry = entries.get(block)
                if entry is not None and entry.shown:
                    shelf.use(entry, now)
                    if best is None or is_better_copy(entry.in_dram, best.in_dram, likelier=False):
                        best, best_shelf, holder = entry, shelf, server
            if best is not None:
                run.append((best_shelf, best, holder))
            elif run:
                run.clear()
        return run

    def store(self, hashes: Sequence[BlockHash], nbytes: int, client: int, now: float) -> StoredRun:
        """Publish the blocks of a chain, in its order. May evict other entries.

        Args:
            nbytes: of each block.
            client: number under which the ledgers book the writer.
        """
        homes = self._primaries(hashes)
        for block, places in zip(reversed(hashes), reversed(homes), strict=True):
            if places and block in places[0].entries:  # mostly it is new
                places[0].shelf.use_known(block, now)
        written: list[tuple[Shelf, Entry]] = []
        dropped: dict[str, int] = {}
        present = 0
        asked: dict[str, None] = {}
        for block, places in zip(hashes, homes, strict=True):
            if not places:
                name = self._ring.primary(block)
                why = NO_SERVER if name is None else self._silent.get(name, MissReason.UNREACHABLE).value
                dropped[why] = dropped.get(why, 0) + 1
                continue
            _entries, shelf, server = places[0]
            asked[server] = None
            entry = shelf.admit(block, nbytes, client, now)
            if isinstance(entry, Entry):
                written.append((shelf, entry))
            elif entry is GrantStatus.PRESENT:
                present += 1
            else:
                dropped[entry.value] = dropped.get(entry.value, 0) + 1
        # The last block first: the beginning of a chain is then the younger one, and stays longer than its end.
        for shelf, entry in reversed(written):
            shelf.finish(entry, now)
        return StoredRun(len(written), present, dropped, tuple(asked))

    def _readers(self, blocks: Sequence[BlockHash]) -> list[tuple[ShelfPlace, ...]]:
        if self._steady:
            return self._primaries(blocks)
        at, readers = self._at, self._ring.readers
        return [tuple([place for name in readers(block) for place in at[name]]) for block in blocks]

    def _primaries(self, blocks: Sequence[BlockHash]) -> list[tuple[ShelfPlace, ...]]:
        # Asked anew each time: the ring answers as fast as a table of some ten thousand blocks, which no cache holds.
        return [*map(self._at.__getitem__, self._ring.primaries(blocks))]
