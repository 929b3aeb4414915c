"""Timelines of a gateway's requests: passes backend events to their builders, and stores finished timelines."""

import asyncio
import time
from collections.abc import Callable, Sequence

from serving.gateway.core.timeline import Answered, RequestTimes
from serving.gateway.core.timeline_builder import RequestBuilder
from serving.gateway.core.timeline_shelf import Choose, TimelineShelf, chosen
from serving.gateway.core.trace_spans import trace_id_of
from serving.gateway.live.gateway_peers import GatewayPeers, TimesWish
from serving.gateway.live.trace_export import TraceExporter
from serving.ids import ReplicaId
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.visit_times import StepTime, VisitTimes


class SharedTimelines:
    """`Timelines` of all gateways: queries this one, then its peers."""

    def __init__(self, shelf: TimelineShelf, peers: GatewayPeers) -> None:
        self._shelf = shelf
        self._peers = peers

    async def find(self, request_id: str, namespace: str | None) -> RequestTimes | None:
        """Find a request's timeline, in any gateway."""
        own = self._shelf.find(request_id, namespace)
        if own is not None:
            return own
        found = await self._peers.find(TimesWish(namespace, request_id))
        return max(found, key=lambda times: times.arrived, default=None)

    async def choose(self, which: Choose, limit: int, namespace: str | None) -> Sequence[RequestTimes]:
        """Choose timelines by a criterion, from all gateways."""
        others = await self._peers.find(TimesWish(namespace, "", which, limit))
        return chosen([*self._shelf.choose(which, limit, namespace), *others], which, limit)


def wished(shelf: TimelineShelf, wish: TimesWish) -> Sequence[RequestTimes]:
    """A gateway's own timelines that match a peer's request."""
    if not wish.request_id:
        return shelf.choose(wish.which, wish.limit, wish.namespace)
    found = shelf.find(wish.request_id, wish.namespace)
    return () if found is None else (found,)


class LiveTimelines:
    """Timelines of one gateway. Used from its event loop.

    Args:
        room: `[gateway] timelines`; 0 = no timelines are recorded.
        host_of: name of a replica's host; empty = unknown.
    """

    def __init__(self, room: int, host_of: Callable[[ReplicaId], str]) -> None:
        self.shelf = TimelineShelf(room)
        self._host_of = host_of
        self.traces: TraceExporter | None = None
        """Where time lines go as spans; None = nowhere."""
        self._on_traced: Callable[[float, str, float], None] = lambda *_: None
        self._read_at: float | None = None
        self._step: StepTime | None = None
        """When the frame that is being read came, and its step."""

    def send_to(self, exporter: TraceExporter, on_traced: Callable[[float, str, float], None]) -> None:
        """Export timelines as spans.

        Args:
            on_traced: called for each first token whose trace is sent: time since arrival [s], trace, and Unix time
                [s].
        """
        self.traces, self._on_traced = exporter, on_traced

    def begin(self, job: GenerationJob, now: float) -> RequestBuilder | None:
        """Start the timeline of an accepted request. Returns: its builder; None if timelines are off."""
        return RequestBuilder(job, now) if self.shelf.room or self.traces is not None else None

    def reading(self, step: StepTime | None, now: float) -> None:
        """Set the step of the frame whose events follow; None = the frame reports none."""
        self._step, self._read_at = step, now

    def read(self) -> None:
        """Mark the end of a frame; later events belong to no frame."""
        self._step = self._read_at = None

    def told(self, times: RequestBuilder, index: int, course: VisitTimes) -> None:
        """Record the durations that an instance reported for a choice."""
        source = self._host_of(ReplicaId(course.source)) if course.source else ""
        times.choice(index).told(course, source)

    def delivered(self, times: RequestBuilder, update: SequenceUpdate) -> None:
        """Record an update of a choice; each token is delivered once."""
        news, now = update.news, self._read_at
        if now is None:  # not from a frame, for example a deadline
            now = asyncio.get_running_loop().time()
        times.choice(update.index).news(now, len(news.tokens), self._step, last=news.finish_reason is not None)

    def sent(self, times: RequestBuilder, index: int, replica: ReplicaId, now: float, *, handoff: bool) -> None:
        """Record that a choice was sent to an instance."""
        times.choice(index).sent(now, replica, self._host_of(replica), handoff=handoff)

    def answered(self, times: RequestBuilder, answered: Answered) -> None:
        """Store the timeline, as the response is complete or was aborted."""
        whole = times.times(answered, time.time())
        self.shelf.add(whole)
        if self.traces is not None and self.traces.add(whole):
            for choice in whole.choices:
                if (first := choice.first_token_s) is not None:
                    self._on_traced(first, trace_id_of(whole), whole.arrived + first)
