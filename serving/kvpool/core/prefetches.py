"""Loads from SSD that no reader waits for yet: a queue behind the demanded promotions. Part of a server's ledger.

A gateway names the blocks of a prompt that waits for its turn. Only a few such loads are ordered at a time, so that a
reader's own load is never behind many of them, and the bytes of all of them are bounded. Nobody leases them: after its
load a block is an ordinary entry, used a moment ago.
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from serving.errors import LedgerError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Space
from serving.kvpool.core.inventory import Inventory
from serving.kvpool.core.promotions import Promotions

LOADS_AHEAD = 4
"""Loads on order at a time: one that is read, and a few so that the disk never waits for the ledger."""


class PrefetchCount(Struct, frozen=True, gc=False):
    """Outcome of one request, in blocks.

    Args:
        in_memory: there already. loading: on order, or in the queue. missing: not on this server.
        refused: on SSD, but beyond the limit of waiting bytes, or of the namespace's quota.
    """

    in_memory: int = 0
    loading: int = 0
    missing: int = 0
    refused: int = 0


class Prefetches:
    """Queue of one server. An entry whose load finds no room for `lease_s` is given up."""

    def __init__(self, inventory: Inventory, promotions: Promotions) -> None:
        self._inventory = inventory
        self._promotions = promotions
        self._limit_bytes = int(inventory.settings.prefetch_share * inventory.settings.capacity_bytes)
        self._waiting: OrderedDict[int, tuple[int, float]] = OrderedDict()
        """Version -> bytes, and when it is given up."""
        self._running: dict[int, int] = {}
        """Version -> bytes of the loads on order."""
        self._bytes = 0
        """Of both."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_due(self) -> float | None:
        """When the first of the queue is given up; None if it is empty."""
        return next(iter(self._waiting.values()))[1] if self._waiting else None

    def want(self, space: Space, hashes: Sequence[BlockHash], now: float) -> PrefetchCount:
        """Queue the blocks of a prefix that are on SSD only.

        All that are here count as used, the first of them last: of a chain the tail is evicted first.
        """
        known = self._inventory.of(space)
        entries = [entry for hash in hashes if (entry := known.get(hash)) is not None and entry.shown]
        self._inventory.touch(entries[::-1], now)
        until = now + self._inventory.settings.lease_s
        in_memory = loading = refused = 0
        for entry in entries:
            if entry.in_dram:
                in_memory += 1
            elif entry.version in self._waiting or self._promotions.pending(entry.version):
                loading += 1
            elif self._bytes + entry.nbytes > self._limit_bytes or entry.account.lacks(entry.nbytes):
                refused += 1
            else:
                loading += 1
                self._waiting[entry.version] = entry.nbytes, until
                self._bytes += entry.nbytes
        self.go_on(now)
        return PrefetchCount(in_memory, loading, len(hashes) - len(entries), refused)

    def go_on(self, now: float) -> None:
        """Order the next loads, unless demanded ones wait for room."""
        while self._waiting and len(self._running) < LOADS_AHEAD:
            version, (nbytes, until) = next(iter(self._waiting.items()))
            entry = self._inventory.visible(version)
            wanted = entry is not None and not entry.in_dram and not self._promotions.pending(version)
            if entry is None or not wanted or now >= until or entry.account.lacks(nbytes):
                del self._waiting[version]
                self._bytes -= nbytes
                continue
            if len(self._promotions) or not self._promotions.start(entry, now):
                return
            del self._waiting[version]
            self._running[version] = nbytes
            self._inventory.counters.prefetches += 1

    def finished(self, version: int) -> None:
        """Note the end of a load, of a prefetch or of a reader."""
        self._bytes -= self._running.pop(version, 0)

    def check(self) -> None:
        """Raises: LedgerError if the sums are wrong, or a load on order is not one."""
        waiting = sum([nbytes for nbytes, _ in self._waiting.values()])
        if self._bytes != waiting + sum(self._running.values()) or self._bytes > self._limit_bytes:
            raise LedgerError(f"{self._bytes} bytes of prefetches are counted, {waiting} of them wait")
        by_version = self._inventory.by_version
        if len(self._running) > LOADS_AHEAD or not all([by_version[version].loading for version in self._running]):
            raise LedgerError("a prefetch is on order that is no load, or too many are")
