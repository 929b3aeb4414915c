"""Monitors the paths on which this instance pulls KV blocks, and reads dummies on idle ones.

One thread serves all sources; each dummy is read on a separate thread, because a read may hang. An overdue dummy counts
as missing once per `lost_s`, and no second one is sent until it ends. A source whose memory was removed is forgotten,
since the path is not at fault.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from serving.errors import HandoffError, HandoffExpiredError
from serving.ids import NodeId, ReplicaId
from serving.instance.live.segment_reader import SegmentPlace
from serving.values.health import LinkHealth, LinkLimits, LinkState, PathFault

logger = logging.getLogger(__name__)

DUMMIES_AT_ONCE = 4
"""Maximum number of concurrent dummy reads; further ones wait."""
FORGET_AFTER_S = 120.0
"""A source lost for this long has probably left; otherwise its next handoff adds it again."""


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """Memory of a source from which a dummy can be read."""

    replica: ReplicaId
    node: NodeId
    place: SegmentPlace
    offset: int
    nbytes: int


@dataclass(slots=True)
class _Dummy:
    future: "Future[None]"
    begun_at: float | None = None
    """Start of the read; None while all threads are busy."""
    overdue: int = 0
    """Number of times it was counted as missing."""


@dataclass(slots=True)
class _Pair:
    memory: PeerMemory
    health: LinkHealth
    dummy: _Dummy | None = field(default=None)


class LinkProbes:
    """One puller's view of its sources. Thread-safe.

    Args:
        read: reads a dummy of a source; raises HandoffError.
    """

    def __init__(self, read: Callable[[PeerMemory], None], limits: LinkLimits) -> None:
        self._read = read
        self._limits = limits
        self._pairs: dict[ReplicaId, _Pair] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._readers: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self.dummies_total = 0
        self.lost_total = 0
        """Number of times that a path was found broken."""

    def meet(self, memory: PeerMemory) -> None:
        """Record a ticket from this source. Effects: its path is monitored from now on."""
        with self._lock:
            known = self._pairs.get(memory.replica)
            if known is not None and known.memory.place == memory.place:
                return
            self._pairs[memory.replica] = _Pair(memory, LinkHealth(self._limits, time.monotonic()))
            if self._thread is None and self._limits.period_s > 0 and not self._stopping.is_set():
                self._readers = ThreadPoolExecutor(DUMMIES_AT_ONCE, "link-dummy")
                self._thread = threading.Thread(target=self._run, name="link-probe", daemon=True)
                self._thread.start()

    def arrived(self, source: ReplicaId) -> None:
        """A pull succeeded."""
        with self._lock:
            if source in self._pairs:
                self._pairs[source].health.blocks_arrived(time.monotonic())

    def missed(self, source: ReplicaId) -> None:
        """Record a pull that timed out without data."""
        with self._lock:
            if source in self._pairs:
                self._missing(self._pairs[source], time.monotonic())

    def isolated(self, source: ReplicaId) -> bool:
        """Whether pulls from this source are refused. Never without dummies, since recovery would go undetected."""
        with self._lock:
            known = self._pairs.get(source)
            return self._thread is not None and known is not None and known.health.state is LinkState.LOST

    def trouble(self) -> PathFault:
        """Path faults that gateways should know."""
        with self._lock:
            states = {replica: pair.health.state for replica, pair in sorted(self._pairs.items())}
        return PathFault(
            lost=tuple(replica for replica, state in states.items() if state is LinkState.LOST),
            late=tuple(replica for replica, state in states.items() if state is LinkState.SATURATED),
        )

    def stop(self) -> None:
        """End the threads; running dummy reads are abandoned."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        tick_s = min(self._limits.period_s, self._limits.lost_s) / 4
        while not self._stopping.wait(tick_s):
            with self._lock:
                now = time.monotonic()
                for replica, pair in list(self._pairs.items()):
                    if self._look(pair, now):
                        del self._pairs[replica]

    def _look(self, pair: _Pair, now: float) -> bool:
        """Send due dummies, count overdue ones; the lock is held. Returns: whether to forget the source."""
        dummy, health = pair.dummy, pair.health
        if dummy is not None:
            if dummy.future.done():
                pair.dummy = None
                return False
            begun = dummy.begun_at
            if begun is not None and now - begun > self._limits.lost_s * (dummy.overdue + 1):
                dummy.overdue += 1
                self._missing(pair, now)
        elif health.dummy_due(now) and self._readers is not None:
            health.dummy_sent(now)
            self.dummies_total += 1
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                pair.dummy = _Dummy(self._readers.submit(self._fetch, pair))
        return health.state is LinkState.LOST and now - health.since > FORGET_AFTER_S

    def _fetch(self, pair: _Pair) -> None:
        """Read one dummy, on a separate thread."""
        begun = time.monotonic()
        with self._lock:
            if pair.dummy is not None:
                pair.dummy.begun_at = begun
        try:
            self._read(pair.memory)
        except HandoffExpiredError:
            with self._lock:
                if self._pairs.get(pair.memory.replica) is pair:
                    del self._pairs[pair.memory.replica]
            return
        except Exception as error:
            if not isinstance(error, HandoffError):
                logger.exception("reading a probe block from %s failed unexpectedly", pair.memory.replica)
            with self._lock:
                if pair.dummy is None or not pair.dummy.overdue:  # otherwise it is already counted
                    self._missing(pair, time.monotonic())
            return
        now = time.monotonic()
        with self._lock:
            before = pair.health.state
            if pair.health.dummy_arrived(now - begun, now) is not before:
                logger.warning("the path from %s is %s", pair.memory.replica, pair.health.state.value)

    def _missing(self, pair: _Pair, now: float) -> None:
        before = pair.health.state
        if pair.health.nothing_arrived(now) is not before:
            self.lost_total += 1
            logger.warning("the path from %s is lost: no data arrives; it is isolated", pair.memory.replica)
