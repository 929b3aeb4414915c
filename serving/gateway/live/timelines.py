"""Timelines of a gateway's requests: passes backend events to their builders, and stores finished timelines."""

import asyncio
import logging
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from serving.errors import ConfigError
from serving.gateway.core.timeline import Answered, Choose, RequestTimes, TimelineShelf, chosen
from serving.gateway.core.timeline_builder import RequestBuilder
from serving.gateway.core.trace_spans import Attribute, TraceSpan, is_sampled, spans_of, trace_id_of
from serving.gateway.live.gateway_peers import GatewayPeers, TimesWish
from serving.ids import ReplicaId
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.visit_times import StepTime, VisitTimes
from serving.version import VERSION

# Sends spans of finished requests to a tracing system, OTLP over HTTP, on a thread of its own.
#
# Its callers never wait: what does not fit its queue is dropped, as is a batch that the receiver does not accept.

logger = logging.getLogger(__name__)

MOST_QUEUED = 1024
"""Requests waiting to be sent."""
BATCH = 64
GATHER_S = 1.0
"""Interval between batches."""
SEND_S = 10.0
"""Time limit of one batch, from connecting to the response."""
PATH = "/v1/traces"
_SERVER, _INTERNAL = 2, 1
"""`Span.SpanKind` of OpenTelemetry's protocol."""
_ERROR = 2
"""`STATUS_CODE_ERROR` of that protocol."""


class TraceExporter:
    """The queue and its thread.

    Args:
        endpoint: base address of the receiver, such as `http://collector:4318`.
        share: share of traced requests among those without a trace context.
        gateway: this gateway's name.
    Raises: ConfigError if the package that the protocol needs is missing.
    """

    def __init__(self, endpoint: str, share: float, model: str, gateway: str) -> None:
        try:
            import opentelemetry.proto.collector.trace.v1.trace_service_pb2  # noqa: F401
        except ImportError as error:
            raise ConfigError("[gateway] trace_endpoint needs opentelemetry-proto: pip install '.[otel]'") from error
        self._url = f"{endpoint.rstrip('/')}{PATH}"
        self._share, self._model, self._gateway = share, model, gateway
        self._queue: deque[RequestTimes] = deque(maxlen=MOST_QUEUED)
        self._wake = threading.Event()
        self._stopping = False
        self._failing = False
        self.sent = self.lost = 0
        """Requests whose spans the receiver accepted, and did not accept."""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, times: RequestTimes) -> bool:
        """Queue a finished request without waiting. Returns: whether its trace will be sent."""
        sampled = is_sampled(times, self._share)
        if sampled:
            self._queue.append(times)
            self._wake.set()
        return sampled

    def close(self) -> None:
        """Send queued requests, and stop."""
        self._stopping = True
        self._wake.set()
        self._thread.join(SEND_S)

    def _run(self) -> None:
        pause = threading.Event()
        while not self._stopping:
            self._wake.wait()
            if not self._stopping:
                pause.wait(GATHER_S)
            self._wake.clear()
            while self._queue:
                self._send([self._queue.popleft() for _ in range(min(len(self._queue), BATCH))])

    def _send(self, batch: Sequence[RequestTimes]) -> None:
        try:
            spans = [span for times in batch for span in spans_of(times, self._model)]
            body = export_request(spans, self._gateway)
            question = urllib.request.Request(self._url, body, {"Content-Type": "application/x-protobuf"})
            with urllib.request.urlopen(question, timeout=SEND_S) as answer:
                answer.read(1 << 16)
        except Exception as error:  # a failed trace must not affect requests
            self.lost += len(batch)
            if not self._failing:
                logger.warning("traces cannot be sent to %s (%s); they are dropped", self._url, error)
            self._failing = True
            return
        self.sent += len(batch)
        if self._failing:
            logger.info("traces are sent to %s again", self._url)
        self._failing = False


def export_request(spans: Sequence[TraceSpan], gateway: str) -> bytes:
    """Spans as a request of OTLP.

    Args:
        gateway: name of the process that reports them.
    """
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    of_service = {"service.name": "cloudmatrix", "service.version": VERSION, "service.instance.id": gateway}
    for name, value in of_service.items():
        _set(resource.resource.attributes.add(), name, value)
    scope = resource.scope_spans.add()
    scope.scope.name = "serving.gateway"
    for span in spans:
        _fill(scope.spans.add(), span)
    body: bytes = message.SerializeToString()
    return body


def _fill(target: Any, span: TraceSpan) -> None:  # noqa: ANN401 - a message of protobuf
    target.trace_id, target.span_id, target.parent_span_id = span.trace_id, span.span_id, span.parent
    target.name = span.name
    target.kind = _SERVER if span.is_request else _INTERNAL
    target.start_time_unix_nano = round(span.begun * 1e9)
    target.end_time_unix_nano = round(span.ended * 1e9)
    for name, value in span.attributes.items():
        _set(target.attributes.add(), name, value)
    if span.failed:
        target.status.code, target.status.message = _ERROR, span.failed


def _set(target: Any, name: str, value: Attribute) -> None:  # noqa: ANN401 - a message of protobuf
    target.key = name
    if isinstance(value, str):
        target.value.string_value = value
    elif isinstance(value, tuple):
        for one in value:
            target.value.array_value.values.add().string_value = one
    elif isinstance(value, int):
        target.value.int_value = value
    else:
        target.value.double_value = value


# Timelines of a gateway's requests: passes backend events to their builders, and stores finished timelines.


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
        """Exports timelines as spans; None = not exported."""
        self._on_traced: Callable[[float, str, float], None] = lambda *_: None
        self._read_at: float | None = None
        self._step: StepTime | None = None
        """Arrival time of the current frame, and its step."""

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

    def add_visit(self, times: RequestBuilder, index: int, course: VisitTimes) -> None:
        """Record the durations that an instance reported for a choice."""
        source = self._host_of(ReplicaId(course.source)) if course.source else ""
        times.choice(index).add_visit(course, source)

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
