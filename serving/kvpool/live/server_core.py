"""State that all threads of a memory server share: the ledger under its lock, its bytes, and the meters.

One lock, `changed`, guards the ledger. It is a condition, notified after each order is carried out, so that threads
which wait for a promotion check again. No slow work is done under it: no hashing, no disk, no socket.
"""

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

from hardware.ub.copy import checksum
from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from serving.kvpool.core.bit_flip import drawn_bit
from serving.kvpool.core.claim_runs import ClaimLimits
from serving.kvpool.core.entry import EntryView, Found, Order
from serving.kvpool.core.ledger_answers import found_in_dram
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.server_settings import ServerSettings
from serving.kvpool.live.meters import Meters


class Disk(Protocol):
    """Interface of the executor of the ledger's orders."""

    def submit(self, orders: Iterable[Order]) -> None:
        """Takes the orders at once and carries them out later; called under the ledger's lock."""
        ...


class ServerCore:
    """The state of one memory server.

    Args:
        manager: the ledger, to be used only while `changed` is held.
        segment, region: where the bytes are; the region is this server's whole share.
    """

    def __init__(
        self, settings: ServerSettings, manager: MemoryManager, segment: UbSegment, region: UbRegion, meters: Meters
    ) -> None:
        self.settings = settings
        self.manager = manager
        self.segment = segment
        self.region = region
        self._memory = segment.view(region)
        self.meters = meters
        self.changed = threading.Condition(threading.Lock())
        self.disk: Disk | None = None
        self.closing = False
        self.models: dict[int, str] = {}
        """Committed model images: version -> `model@version`. May name images that have been removed."""
        self.stirred = threading.Event()
        """Set by calls that may change the ledger; cleared by the ticker, under the lock."""
        self._numbers = itertools.count(1)

    def now(self) -> float:
        """The ledger's time [s]: monotonic, common to all threads."""
        return time.monotonic()

    def new_number(self) -> int:
        """A number under which a connection or a process can be booked; never given twice."""
        return next(self._numbers)

    def dispatch(self) -> None:
        """Hand the ledger's orders to the disk. Called under the lock after any call that may give orders."""
        if not self.stirred.is_set():
            self.stirred.set()
        orders = self.manager.take_orders()
        if orders:
            assert self.disk is not None, "a ledger without an SSD tier gave orders"
            self.disk.submit(orders)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Bytes at an offset of the segment's file, writable."""
        start = offset - self.region.offset
        assert 0 <= start <= start + nbytes <= len(self._memory), "an extent outside the region"
        return self._memory[start : start + nbytes]

    def entries(self) -> list[EntryView]:
        """All committed entries at this moment, in order of version.

        Takes about 0.1 s for 100,000 of them, under the lock: call it once a listing, not once a page.
        """
        with self.changed:
            return list(self.manager.entries())

    def in_dram(self, version: int) -> Found | None:
        """The entry if its bytes are in memory now. Called under the lock."""
        return found_in_dram(self.manager, version)

    def verify(self, version: int, *, remove: bool) -> bool | None:
        """Hash an entry in memory; it is held in place for that, without the lock.

        Args:
            remove: remove it from both tiers if its bytes are wrong.
        Returns: whether its bytes are those that were stored; None if it is not in memory.
        """
        number = self.new_number()
        with self.changed:
            found = self.in_dram(version)
            if found is None or not self.manager.hold(version, number, self.now()):
                return None
        right = checksum(self.view(found.offset, found.nbytes)) == found.checksum
        with self.changed:
            if not right and remove:
                self.manager.distrust(version, self.now())
                self.meters.add("damaged_dram")
            self.manager.unhold(version, number, self.now())
            self.dispatch()
        return right

    def turn_bit(self, draw: float) -> bool:
        """Turn over one bit of a KV block in memory, as a failing memory cell would, for tests. Not booked anywhere.

        Args:
            draw: from 0 to below 1; see `drawn_bit`.
        Returns: False if no block is in memory.
        """
        chosen = drawn_bit(self.entries(), draw)
        if chosen is None:
            return False
        one, bit = chosen
        number = self.new_number()
        with self.changed:  # it may have moved since it was listed
            found = self.in_dram(one.version)
            if found is None or not self.manager.hold(one.version, number, self.now()):
                return False
        try:
            self.view(found.offset, found.nbytes)[bit // 8] ^= 1 << bit % 8
        finally:
            with self.changed:
                self.manager.unhold(one.version, number, self.now())
                self.dispatch()
        return True

    def usage(self) -> dict[str, Any]:
        """`{namespace: {dram_bytes, ssd_bytes, entries, ...}}`. Called under the lock."""
        return {name: dataclasses.asdict(usage) for name, usage in self.manager.usage().items()}

    def facts(self) -> dict[str, Any]:
        """All counters of the ledger and the meters: `{ledger, namespaces, counters, bounds_s, histograms}`."""
        with self.changed:
            ledger = dataclasses.asdict(self.manager.stats())
            namespaces = self.usage()
        return {"ledger": ledger, "namespaces": namespaces, **self.meters.snapshot()}

    def set_quotas(self, quotas: dict[str, int]) -> None:
        """Set each namespace's share of quota on this server [bytes]; 0 = none. Entries beyond a quota are evicted."""
        with self.changed:
            self.manager.set_quotas(quotas)
            self.dispatch()

    def set_claim_limits(self, limits: dict[str, ClaimLimits]) -> None:
        """Set what each namespace may claim on this server. What exceeds that loses its protection, not its place."""
        with self.changed:
            self.manager.claims.set_limits(limits)
            self.dispatch()

    def model_versions(self) -> tuple[str, ...]:
        """Models whose weights are on this server now, in order. Called under the lock."""
        self.models = {version: name for version, name in self.models.items() if self.manager.found(version)}
        return tuple(sorted(set(self.models.values())))
