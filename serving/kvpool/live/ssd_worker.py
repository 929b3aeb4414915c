"""Carries out a ledger's disk orders: one thread reads, one writes and removes; slow writes delay no read.

The queues are unbounded lists of a bounded number of orders: the ledger has at most `max_spills` running spills, a load
needs an extent, and a removal needs a stored entry. Orders of one entry whose sequence matters are writes and removals,
and those keep their order; a load that is too late finds another file, or none, and fails.
"""

import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from hardware.ub.copy import checksum
from serving.errors import SsdError
from serving.kvpool.core.entry import Kind, LoadFromSsd, Order, Spill, Unlink
from serving.kvpool.core.ssd_restore import KeptFile, restore_files
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_files import SsdFiles, StoredEntry

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Pause of writes after a failed one; entries that would leave memory for the disk are dropped during it."""
QUIET_S = 60.0
_JOIN_S = 5.0
_LAST_REMOVALS_S = 4.0
"""How long a stopping server still carries out queued removals: deleted entries must not be found at its next start."""
HANG_S = 10.0
"""While a write takes longer than this, no more orders are given to the disk."""

Job = Callable[[], None]


class SsdWorker:
    """The two threads, their queues and what they count."""

    def __init__(self, core: ServerCore, files: SsdFiles) -> None:
        self.files = files
        self._core = core
        self._reads: queue.SimpleQueue[LoadFromSsd | None] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[Spill | Unlink | Job | None] = queue.SimpleQueue()
        self._unlinking: Counter[str] = Counter()
        self._started = False
        self._stopping = False
        self._paused_until = 0.0
        self._writing_since: float | None = None
        self._last_removal = math.inf
        self._told_at: dict[str, float] = {}
        self._threads = [
            threading.Thread(target=self._read_forever, name="kvpool-ssd-read", daemon=True),
            threading.Thread(target=self._write_forever, name="kvpool-ssd-write", daemon=True),
        ]

    def start(self) -> None:
        """Start the two threads."""
        for thread in self._threads:
            thread.start()
        self._started = True

    def stop(self) -> None:
        """End the threads after the current order and queued removals; other orders are dropped.

        A blocked thread is left behind.
        """
        self._last_removal = time.monotonic() + _LAST_REMOVALS_S
        self._stopping = True
        self._reads.put(None)
        self._writes.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)

    def submit(self, orders: Iterable[Order]) -> None:
        """Queue orders; never waits."""
        for order in orders:
            if isinstance(order, LoadFromSsd):
                self._reads.put(order)
                continue
            if isinstance(order, Unlink):
                self._unlinking[self.files.path_of(order.space, order.hash, order.kind)] += 1
            self._writes.put(order)

    def unlinking(self) -> set[str]:
        """Files whose removal is queued. Called under the ledger's lock."""
        return set(self._unlinking)

    def run_between_writes(self, job: Job, timeout_s: float) -> bool:
        """Run a job after all queued writes, while no file is written or removed.

        Returns: whether it finished in time.
        Raises: SsdError as `job` does.
        """
        done = threading.Event()
        errors: list[SsdError] = []

        def fenced() -> None:
            try:
                job()
            except SsdError as error:
                errors.append(error)
            finally:
                done.set()

        self._writes.put(fenced)
        in_time = done.wait(timeout_s)
        if errors:
            raise errors[0]
        return in_time

    @property
    def waiting(self) -> dict[str, int]:
        """Orders in the queues."""
        return {"loads": self._reads.qsize(), "writes": self._writes.qsize()}

    @property
    def hangs(self) -> bool:
        """Whether a write has not returned for `HANG_S`."""
        since = self._writing_since
        return since is not None and time.monotonic() - since > HANG_S

    @property
    def dead(self) -> bool:
        """Whether one of the threads has ended without being stopped."""
        return self._started and not self._stopping and not all(thread.is_alive() for thread in self._threads)

    def _read_forever(self) -> None:
        while (order := self._reads.get()) is not None and not self._stopping:
            start = time.perf_counter()
            found = self._load(order)
            good = found is True
            self._core.meters.observe("ssd_load", time.perf_counter() - start, (("ssd_bytes_read", order.nbytes),))
            with self._core.changed:
                if found is False and self._core.manager.found(order.version) is not None:  # not removed meanwhile
                    self._core.meters.add("damaged_ssd")
                    logger.warning("entry %s on SSD is missing or damaged; it is not served", order.hash.hex())
                self._core.manager.loaded(order.version, good, self._core.now(), unreadable=found is None)
                self._tell()

    def _write_forever(self) -> None:
        while (order := self._writes.get()) is not None:
            if self._stopping and (not isinstance(order, Unlink) or time.monotonic() > self._last_removal):
                continue
            self._writing_since = time.monotonic()
            if isinstance(order, Spill):
                self._spill_and_tell(order)
            elif isinstance(order, Unlink):
                self._unlink(order)
            else:
                order()
            self._writing_since = None

    def _spill_and_tell(self, order: Spill) -> None:
        start = time.perf_counter()
        right = checksum(self._core.view(order.offset, order.nbytes)) == order.checksum
        good = right and self._spill(order)
        amounts = (("ssd_bytes_written", order.nbytes),) if good else (("ssd_spills_failed", 1),)
        self._core.meters.observe("ssd_spill", time.perf_counter() - start, amounts)
        with self._core.changed:
            now = self._core.now()
            self._core.manager.spilled(order.version, good, now)
            if not right:  # damaged in memory: nobody shall have it
                self._core.manager.distrust(order.version, now)
                self._core.meters.add("damaged_dram")
            self._tell()

    def _tell(self) -> None:
        """Hand on new orders and wake waiting threads; called under the lock."""
        self._core.dispatch()
        self._core.changed.notify_all()

    def _load(self, order: LoadFromSsd) -> bool | None:
        """Returns: False if the file holds another entry or damaged bytes; None after a disk error, which may pass."""
        try:
            return self.files.read(_stored(order), self._core.view(order.offset, order.nbytes))
        except SsdError as error:
            self._complain("ssd_read_errors", error)
            return None

    def _spill(self, order: Spill) -> bool:
        if time.monotonic() < self._paused_until:
            return False
        try:
            self.files.write(_stored(order), self._core.view(order.offset, order.nbytes))
        except SsdError as error:
            self._paused_until = time.monotonic() + PAUSE_S
            self._complain("ssd_write_errors", error)
            return False
        return True

    def _unlink(self, order: Unlink) -> None:
        path = self.files.path_of(order.space, order.hash, order.kind)
        try:
            self.files.unlink(path)
        except SsdError as error:
            self._complain("ssd_unlink_errors", error)
        with self._core.changed:
            self._unlinking[path] -= 1
            if not self._unlinking[path]:
                del self._unlinking[path]

    def _complain(self, counter: str, error: SsdError) -> None:
        """Counts an error of the disk and logs it, but not the same kind again and again."""
        self._core.meters.add(counter)
        now = time.monotonic()
        if now - self._told_at.get(counter, -QUIET_S) >= QUIET_S:
            self._told_at[counter] = now
            logger.warning("SSD tier: %s; the pool works without it, further errors are only counted", error)


def restore(core: ServerCore, files: SsdFiles) -> int:
    """Take over what the predecessor of a starting server left on disk; remove files that are not taken over.

    Only headers are read here.

    Returns: entries taken over.
    Raises: SsdError if the folder cannot be read.
    """
    now, kept, useless = core.now(), [], []
    for file in files.scan():
        one = file.entry
        if one is None:
            useless.append(file.path)
        else:
            kept.append(KeptFile(one.space, one.hash, one.kind, one.nbytes, one.checksum, now - file.age_s))
    with core.changed:
        restored, rest = restore_files(core.manager, kept, now)
        for version, kept_file in restored:
            if kept_file.kind is Kind.MODEL:
                core.models[version] = kept_file.space.layout
        core.dispatch()
    useless += [files.path_of(one.space, one.hash, one.kind) for one in rest]
    for path in useless:
        try:
            files.unlink(path)
        except SsdError as error:
            logger.warning("%s", error)
    core.meters.add("ssd_restored", len(restored))
    core.meters.add("ssd_discarded", len(useless))
    if kept or useless:
        logger.info("SSD tier: %d entries taken over, %d useless files removed", len(restored), len(useless))
    return len(restored)


def _stored(order: Spill | LoadFromSsd) -> StoredEntry:
    return StoredEntry(order.space, order.hash, order.kind, order.nbytes, order.checksum)
