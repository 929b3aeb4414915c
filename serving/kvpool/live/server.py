"""A memory server: one UB segment, one folder on disk, and the clients that read and write there.

    clients ──frames──► connections ──► handlers ──►  ledger (one lock)  ◄── ticker: expiries, water marks, dead holders
                                                        │ orders   ▲ done
                                                        ▼          │
                                                     SSD worker: one thread reads, one writes

It does not depend on Ray; a deployment, or a test, starts it in a process and reads its record.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardware.ub.file import remove_stale
from hardware.ub.region import UbRegion
from hardware.ub.segment import UbSegment
from serving.errors import SsdError
from serving.kvevents.live.publisher import EventPublisher, EventSource
from serving.kvpool.core.claim_runs import limits_of
from serving.kvpool.core.entry import Kind
from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.core.messages import Welcome
from serving.kvpool.core.server_settings import ServerSettings
from serving.kvpool.core.session import Holds
from serving.kvpool.live.handlers import HandlerContext
from serving.kvpool.live.meters import Meters
from serving.kvpool.live.server_connections import Connections
from serving.kvpool.live.server_core import ServerCore
from serving.kvpool.live.ssd_files import SsdFiles, SsdSlot
from serving.kvpool.live.ssd_worker import SsdWorker, restore
from serving.sockets.secrets import ClusterSecrets
from serving.values.kv_changes import CPU, STORAGE, BlocksStored, KvChange
from serving.values.pool_view import NamespaceRecord, ServerRecord, ServerState

logger = logging.getLogger(__name__)

TICK_S = 0.05
IDLE_TICK_S = 1.0
"""Without calls since the last tick. The first call ends the wait."""
HOLDERS_EVERY_S = 1.0
_SHORTEST_S = 0.01
_JOIN_S = 5.0
_REGIONS = 16
_NEVER_S = 1e9


class MemoryServer:
    """One memory server of this process. `start` once, `stop` once; every method is safe for threads."""

    def __init__(self, settings: ServerSettings, disk: type[SsdFiles] = SsdFiles) -> None:
        """
        Args:
            disk: class that writes and reads the files of the SSD tier.
        Raises: UbFullError, UbMissingError or SpecError if the segment cannot be made.
        Effects: takes the segment's memory and an SSD slot, removes segments of dead servers, restores the files on
            disk.
        """
        self._settings = settings
        self._disk = disk
        self.incarnation = os.urandom(8).hex()
        self._born = time.monotonic()
        self._slot, self._ssd_error = _take_slot(settings.ssd_folder)
        try:
            self._segment = _make_segment(settings, self.incarnation)
        except BaseException:
            self._give_back_slot()
            raise
        self._region: UbRegion = self._segment.allocate(settings.capacity_bytes, "kvcache")
        self._events = self._make_events()
        self._core = self._make_core()
        self._ssd = self._open_ssd()
        self._holds = Holds(self._core.manager, self._core.new_number)
        context = HandlerContext(self._core, self._holds, self._ssd, self._ssd_error, self.facts, self.set_namespaces)
        self._connections = Connections(
            context, ClusterSecrets.of(settings.secret), settings.node, settings.max_connections, self._make_welcome
        )
        self._stop = threading.Event()
        self._progress_at = time.monotonic()
        self._ticker = threading.Thread(target=self._tick_forever, name="kvpool-ticker", daemon=True)

    @property
    def name(self) -> str:
        """Place in the ring: as set, or from node and SSD slot, so that a replacement gets the same one."""
        if self._settings.name:
            return self._settings.name
        place = self.incarnation[:8] if self._slot is None else f"{self._slot.index}"
        return f"kvcache-{self._settings.node[:12]}-{place}"

    def start(self) -> tuple[str, int]:
        """Start to serve: threads, and a socket that listens.

        Returns: host and port.
        Raises: PoolUnreachableError if the host cannot be bound.
        """
        self._connections.start(self._settings.host, self._settings.ports)
        if self._ssd is not None:
            self._ssd.start()
        if self._events is not None:
            self._events.start()
        self._progress_at = time.monotonic()
        self._ticker.start()
        return self._connections.address

    def move(self, host: str) -> None:
        """Listens on another address of this host too, and names that one in its record.

        Raises: OSError if the host cannot be bound; ConfigError if the range has no free port.
        """
        self._connections.move(host)

    def stop(self) -> None:
        """End every connection and remove the segment; files on disk stay for a successor. Twice is allowed.

        The memory is freed, except for weights that processes compute with.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        with self._core.changed:
            self._core.stirred.set()
            self._core.closing = True
            self._core.changed.notify_all()
        self._connections.stop(_JOIN_S)
        if self._ssd is not None:
            self._ssd.stop()
        if self._ticker.is_alive():
            self._ticker.join(_JOIN_S)
        if self._events is not None:
            self._events.stop()
        self._segment.discard()
        self._give_back_slot()

    def record(self, state: ServerState) -> ServerRecord:
        """Record to announce now."""
        with self._core.changed:
            models = self._core.model_versions()
        return ServerRecord(
            name=self.name,
            incarnation=self.incarnation,
            node=self._settings.node,
            host=self._connections.address[0],
            port=self._connections.address[1],
            segment=str(self._segment.path),
            generation=self._region.generation,
            capacity_bytes=self._settings.capacity_bytes,
            state=state,
            uptime_s=time.monotonic() - self._born,
            models=models,
            facts=self.facts(),
        )

    def facts(self) -> dict[str, Any]:
        """Counters and gauges: `ServerCore.facts` with connections, holds, disk queues and the disk's startup error."""
        return {
            **self._core.facts(),
            "connections": self._connections.count,
            "holds": self._holds.count,
            "ssd_queue": {} if self._ssd is None else self._ssd.waiting,
            "ssd_error": self._ssd_error,
            "progress_age_s": self.progress_age_s(),
            "kv_events": None if self._events is None else self._events.facts(),
        }

    def set_namespaces(self, namespaces: Sequence[NamespaceRecord]) -> None:
        """Set the tenants, with their share of quota and claims on this server.

        A namespace that is now beyond its quota loses its least recently used entries.
        """
        self._core.set_quotas({one.name: one.quota_bytes for one in namespaces})
        self._core.set_claim_limits({one.name: limits_of(one.claims) for one in namespaces})

    def turn_bit(self, draw: float) -> bool:
        """Corrupt one stored block, like a failing memory cell; for tests. Its checksum shows that to readers.

        Args:
            draw: from 0 to below 1; which bit of which block.
        Returns: False if no block is in memory. Model weights are spared: processes compute with them unchecked.
        """
        return self._core.turn_bit(draw)

    def progress_age_s(self) -> float:
        """How long ago the ticker last got the ledger's lock and did its round; large = the server is stuck.

        Very large once a thread that the server cannot do without has died.
        """
        if self._connections.deaf or (self._ssd is not None and self._ssd.dead):
            return _NEVER_S
        return time.monotonic() - self._progress_at

    def _give_back_slot(self) -> None:
        if self._slot is not None:
            self._slot.give_back()

    def _make_core(self) -> ServerCore:
        settings = self._settings
        ssd_bytes = settings.ssd_bytes if self._slot is not None else 0
        # Versions of different incarnations must not meet: a random start, far below 64 bits.
        manager = MemoryManager(
            settings.manager(self._region.offset, ssd_bytes),
            int.from_bytes(os.urandom(6), "little") + 1,
            None if self._events is None else self._events.changes,
        )
        tiers = ("promote", "ssd_load", "ssd_spill") if self._slot is not None else ()
        meters = Meters("lookup", "reserve", "put", *tiers)
        return ServerCore(settings, manager, self._segment, self._region, meters)

    def _make_events(self) -> EventPublisher | None:
        events = self._settings.events
        if events is None:
            return None
        source = EventSource("pool", events.model, events.block_tokens, events.rank, self._dump)
        return EventPublisher(events.config, source)

    def _dump(self) -> list[KvChange]:
        """See `EventSource.dump`."""
        core, events = self._core, self._events
        assert events is not None, "only its publisher asks"
        with core.changed:
            events.changes.begin_again()
            entries = [one for one in core.manager.entries() if one.space.namespace in events.changes.namespaces]
        return [
            BlocksStored(medium, (one.hash,), scope=one.space)
            for one in entries
            if one.kind is Kind.CONTEXT
            for medium, there in ((CPU, one.in_dram), (STORAGE, one.on_ssd))
            if there
        ]

    def _open_ssd(self) -> SsdWorker | None:
        if self._slot is None:
            return None
        files = self._disk(self._slot.path, self._settings.disk_full)
        worker = SsdWorker(self._core, files)
        self._core.disk = worker
        try:
            restore(self._core, files)
            if self._core.manager.stats().entries:
                logger.info("entries on disk are back, without the claims of sessions: those end with their server")
        except SsdError as error:
            self._ssd_error = str(error)
            logger.warning("%s; serving without the entries on disk", error)
        return worker

    def _make_welcome(self, client: int) -> Welcome:
        return Welcome(
            self.name,
            self.incarnation,
            self._settings.node,
            str(self._segment.path),
            self._region.generation,
            client,
        )

    def _tick_forever(self) -> None:
        core = self._core
        holders_at = 0.0
        while not self._stop.is_set():
            with core.changed:
                idle = not core.stirred.is_set()
                now = core.now()
                core.manager.disk_hangs(self._ssd is not None and self._ssd.hangs)
                core.manager.tick(now)
                core.dispatch()
                core.changed.notify_all()
                wanted = core.manager.next_tick(now)
                core.stirred.clear()
            self._progress_at = time.monotonic()
            if now - holders_at >= HOLDERS_EVERY_S:
                holders_at = now
                self._release_dead()
            limit = IDLE_TICK_S if idle else TICK_S
            pause = max(_SHORTEST_S, limit if wanted is None else min(limit, wanted - now))
            (core.stirred if idle else self._stop).wait(pause)

    def _release_dead(self) -> None:
        with self._core.changed:
            holders = self._holds.holders()
        for process in holders:
            if process.is_alive():  # reads /proc, so not under the lock
                continue
            with self._core.changed:
                self._holds.release(process, self._core.now())
                self._core.dispatch()


def _take_slot(folder: Path | None) -> tuple[SsdSlot | None, str]:
    """A slot, or why there is none: a server without a disk is better than no server."""
    if folder is None:
        return None, ""
    try:
        return SsdSlot.take(folder), ""
    except SsdError as error:
        logger.error("%s; serving without an SSD tier", error)
        return None, str(error)


def _make_segment(settings: ServerSettings, incarnation: str) -> UbSegment:
    """Create a segment, after removing those of dead servers with the same prefix: memory may be short of both."""
    for path in remove_stale(settings.segment_folder, settings.segment_prefix):
        logger.info("removed %s, left behind by a dead process", path)
    path = settings.segment_folder / f"{settings.segment_prefix}{incarnation}"
    return UbSegment.create(path, settings.capacity_bytes, max_regions=_REGIONS, reserve=settings.reserve)
