"""Moves the KV blocks of one engine's handoffs, on separate threads: checksums on the source, copies on the target.

Steps never wait for moves; the engine receives their ends as events.
"""

import logging
from collections.abc import Callable

from msgspec.structs import replace

from hardware.clock import Clock
from serving.errors import HandoffError
from serving.ids import SequenceId
from serving.instance.core.events import HandoffReady, PullDone, PullOrder, failure
from serving.instance.core.ports import KvTransport
from serving.instance.live.engine_news import LoopNews, Post
from serving.instance.live.handoff_counts import HandoffPathCounts
from serving.instance.live.work_threads import WorkThreads
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
        deliver: Callable[[list[LoopNews]], None],
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
        """Register the blocks of a held sequence. Effects: sends `Prefilled`; on failure cancels it and sends
        `Lost`."""
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
        prefilled = Prefilled(event.first, replace(ticket, drafts=event.drafts))
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
