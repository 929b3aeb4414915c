"""Moves the KV blocks of one engine's handoffs, on separate threads: checksums on the source, copies on the target.

Steps never wait for moves; the engine receives their ends as events.
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from msgspec.structs import replace

from hardware.clock import Clock
from serving.errors import HandoffError
from serving.ids import SequenceId
from serving.instance.core.events import HandoffReady, PullDone, PullOrder, failure
from serving.instance.core.ports import KvTransport
from serving.instance.live.engine_news import LoopEvent, Post
from serving.telemetry.stats import BOUNDS_S, MOST_SOURCES, OTHER
from serving.values.news import Prefilled, refusal
from serving.values.orders import Cancel
from serving.values.visit_times import CHECKSUMS, Leg, VisitTimes

logger = logging.getLogger(__name__)


class KvMoves:
    """Registers blocks for other instances to pull, and pulls those handed off to this engine.

    Args:
        post: passes an event to the engine.
        deliver: sends events to gateways; callable from any thread.
        at_once: concurrent moves; the transport must support it.
        tell_times: report durations to gateways.
    """

    def __init__(
        self,
        transport: KvTransport,
        clock: Clock,
        post: Post,
        deliver: Callable[[list[LoopEvent]], None],
        name: str,
        at_once: int,
        *,
        tell_times: bool = False,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._post = post
        self._deliver = deliver
        self._tell_times = tell_times
        self._pulls: dict[SequenceId, float] = {}
        """Start time of each pull in flight."""
        self._threads = WorkThreads(at_once, f"{name}-kv")
        self.paths = HandoffPathCounts()
        """Ended pulls, by source node."""

    def pull_age_s(self) -> float:
        """How long the oldest pull has been running [s]; 0 without one."""
        begun = list(self._pulls.values())
        return self._clock.now() - min(begun) if begun else 0.0

    def pull(self, order: PullOrder) -> None:
        """Start a pull. Effects: posts its result to the engine."""
        self._threads.submit(self._pull, order)

    def register(self, event: HandoffReady) -> None:
        """Register the blocks of a held sequence. Effects: sends `Prefilled`; on failure cancels, and sends `Lost`."""
        self._threads.submit(self._register, event)

    def stop(self, timeout_s: float) -> None:
        """Wait for started moves until the timeout [s]; drop the rest."""
        self._threads.stop(timeout_s)

    def _register(self, event: HandoffReady) -> None:
        begun = self._clock.now()
        try:
            ticket = self._transport.register(event.ticket_id, event.blocks, event.hashes, event.computed_tokens)
        except Exception as exception:
            logger.exception("could not register the KV blocks of %s", event.sequence_id)
            error = HandoffError(f"could not register KV blocks: {exception}")
            self._post(Cancel(event.sequence_id))
            self._deliver([refusal(event.sequence_id, error)])
            return
        checksums = Leg(CHECKSUMS, self._clock.now() - begun)
        prefilled = Prefilled(event.first, replace(ticket, drafts=event.drafts, masked_from=event.masked_from))
        self._deliver([VisitTimes(event.sequence_id, (checksums,)), prefilled] if self._tell_times else [prefilled])

    def _pull(self, order: PullOrder) -> None:
        problem: str | None = None
        moved = 0
        self._pulls[order.sequence_id] = begun = self._clock.now()
        try:
            moved = self._transport.pull(order.ticket, order.first_block, order.blocks)
        except HandoffError as error:
            problem = failure(error)
        except Exception as error:
            logger.exception("pull of %s failed unexpectedly", order.sequence_id)
            problem = failure(HandoffError(f"pull failed: {error}"))
        elapsed = self._clock.now() - begun
        self._pulls.pop(order.sequence_id, None)
        self.paths.add(order.ticket.node_id, elapsed, moved, failed=problem is not None)
        self._post(PullDone(order.sequence_id, moved, problem, elapsed))


# Counts of one instance's pulls, by source node.


class HandoffPathCounts:
    """Counts of one instance. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def add(self, source: str, seconds: float, moved_bytes: int, *, failed: bool) -> None:
        """Count one pull.

        Args:
            source: node that had the blocks.
        """
        with self._lock:
            if source not in self._rows and len(self._rows) >= MOST_SOURCES:
                source = OTHER
            row = self._rows.setdefault(source, [0] * (len(BOUNDS_S) + 3))
            if failed:
                row[1] += 1
                return
            row[0] += moved_bytes
            row[2 + bisect_left(BOUNDS_S, seconds)] += 1
            self._sums[source] = self._sums.get(source, 0.0) + seconds

    def facts(self) -> dict[str, list[float]]:
        """The counts in the form to be reported: by source, bytes, failures, sum of durations [s], counts by bucket."""
        with self._lock:
            return {name: [row[0], row[1], self._sums.get(name, 0.0), *row[2:]] for name, row in self._rows.items()}


# Threads for KV moves, which may hang as long as their sources do.


class WorkThreads:
    """Runs work concurrently, starting it in submission order; it need not be waited for at the end.

    Args:
        at_once: maximum number of concurrent calls.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix=name)
        self._unfinished: set[Future[None]] = set()

    def submit(self, work: Callable[[Any], None], order: object) -> None:
        """Run `work(order)` as soon as a thread is free."""
        future = self._threads.submit(work, order)
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)

    def stop(self, timeout_s: float) -> None:
        """Drop queued work, and wait for the rest until the timeout [s]; hanging work is abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        wait(list(self._unfinished), timeout_s)
