"""The instance's side of its links: received frames become events of the engine, its events one frame per gateway.

Runs on an asyncio loop; the engine runs on its own thread. If a gateway's link closes, its sequences are cancelled, so
that blocks never wait for a dead owner.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from serving.config.cluster import ANY_PORT, PortRange
from serving.deadline import within
from serving.errors import LinkError
from serving.grammar.compile import Grammars
from serving.ids import BlockHash, SequenceId
from serving.instance.core.events import Drain, HandoffClosed, MoveOut
from serving.instance.core.life import (
    STORED_LOOK_S,
    BeginLeaving,
    Inside,
    InstanceLife,
    LifeEffect,
    LifeEvent,
    LifePhase,
    Stored,
    Wake,
)
from serving.instance.core.load_reports import LoadReports, changes_load
from serving.instance.live.engine_loop import EngineLoop
from serving.instance.live.engine_news import LoopEvent
from serving.sockets.secrets import ClusterSecrets
from serving.values.health import PathFault
from serving.values.instances import CRASHED_AGE_S, Status
from serving.values.news import FailKind, News, Refused, ends, in_time_of
from serving.values.orders import Add, Adopt, Cancel, Release, Submission
from serving.values.sequence import SequenceSpec
from serving.values.visit_times import StepTime, VisitTimes, after, in_real_time
from serving.wire import messages as m
from serving.wire.connection import Connection, Listener, verifier_of

logger = logging.getLogger(__name__)

STATUS_PERIOD_S = 0.5
HELLO_DEADLINE_S = 5.0
MAX_HELLO_BYTES = 64 << 10
"""Maximum number of buffered bytes of an unauthenticated connection, so that it costs little memory."""
MOST_STRANGERS = 64
"""Maximum number of connections without a Hello, which clients send immediately; beyond it the oldest is closed, so
that gateways can always connect.
"""


class InstanceServer:
    """Listens for gateways on behalf of one engine."""

    def __init__(
        self,
        welcome: m.InstanceWelcome,
        secret: str | ClusterSecrets,
        status_period_s: float | None = None,
        trouble: Callable[[], PathFault] = PathFault,
        grammars: Grammars | None = None,
        idle_period_s: float | None = None,
    ) -> None:
        """
        Args:
            status_period_s, idle_period_s: interval of status reports to gateways, with and without sequences [s].
            trouble: returns the instances from which no KV blocks arrive.
            grammars: notified of arriving grammars, so that no step waits for their compilation.
        """
        self._grammars = grammars
        self._trouble = trouble
        self._status_period_s = STATUS_PERIOD_S if status_period_s is None else status_period_s
        self._idle_period_s = self._status_period_s if idle_period_s is None else idle_period_s
        self._reports = LoadReports()
        self._welcome = welcome
        self._secrets = ClusterSecrets.of(secret)
        self._gateways: dict[Connection, m.GatewayHello | None] = {}
        self._strangers: dict[Connection, None] = {}
        """Connections that have not sent a Hello yet."""
        self._owner: dict[SequenceId, Connection] = {}
        self._visits: defaultdict[Connection, list[VisitTimes]] = defaultdict(list)
        """Durations for the next frame to each gateway: a handoff's event is created later than its durations."""
        self._life = InstanceLife()
        self._life_moved = asyncio.Event()
        """Set when a leaving instance must act before its next wake-up."""
        self._listener: Listener | None = None
        self._engine_loop: EngineLoop | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None
        self._status_task: asyncio.Task[None] | None = None
        self._step = 0
        self.taken = 0
        """Sequences received, including those handed off by other instances."""
        self.share = 1.0
        """See `Status.share`."""
        self.max_sequences = self.max_step_tokens = 0
        """See `Status`."""
        self.facts: Callable[[], dict[str, Any]] = dict
        self.prefix_facts: Callable[[Sequence[BlockHash]], dict[str, Any]] = lambda _: {}  # see `FactsRequest`

    async def start(self, engine_loop: EngineLoop, host: str, ports: PortRange = ANY_PORT) -> tuple[str, int]:
        """Listen on `host` at a free port of a range.

        Returns: the address bound.
        Raises: OSError if the host cannot be bound; ConfigError if the range has no free port.
        """
        self._engine_loop = engine_loop
        self._asyncio_loop = asyncio.get_running_loop()
        self._listener = Listener(self._accept_connection)
        bound = self._listener.start(host, ports)
        self._status_task = asyncio.create_task(self._status_forever())
        return bound

    async def stop(self) -> None:
        """Close every link and stop listening."""
        if self._status_task is not None:
            self._status_task.cancel()
        if self._listener is not None:
            await self._listener.stop()
        for connection in [*self._gateways, *self._strangers]:
            connection.close("the instance stops")

    def move(self, host: str) -> None:
        """Also listen on another address of this host, for new links. Raises: as `start`."""
        assert self._listener is not None
        self._listener.move(host)

    @property
    def address(self) -> tuple[str, int]:
        """Address for new links, once started."""
        assert self._listener is not None
        return self._listener.address

    def deliver(self, news: list[LoopEvent]) -> None:
        """Pass events from another thread; wakes the asyncio loop once per call."""
        assert self._asyncio_loop is not None
        if not self._asyncio_loop.is_closed():
            self._asyncio_loop.call_soon_threadsafe(self._dispatch, news)

    @property
    def open_sequences(self) -> int:
        """Number of sequences here that belong to some gateway."""
        return len(self._owner)

    @property
    def draining(self) -> bool:
        """Whether new sequences are refused."""
        return self._life.leaving

    def begin_to_leave(self, drain_s: float) -> None:
        """Refuse new sequences from now on, and notify every gateway immediately. `leave` does the rest.

        Args:
            drain_s: see `BeginLeaving`.
        """
        self._live(Inside(len(self._owner)))
        self._live(BeginLeaving(drain_s))

    async def leave(self, drain_s: float) -> None:
        """Follow `InstanceLife` until the instance has left.

        Args:
            drain_s: how long streams may continue before they are moved [s].
        Effects: those of `begin_to_leave`.
        """
        assert self._engine_loop is not None
        self.begin_to_leave(drain_s)
        while (wake_at := self._life.next_wake()) is not None:
            pause_s = max(0.0, wake_at - time.monotonic())
            if self._life.phase is LifePhase.EMPTY:
                if await asyncio.to_thread(self._engine_loop.at_rest):
                    self._live(Stored())
                    continue
                pause_s = min(pause_s, STORED_LOOK_S)
            self._life_moved.clear()
            with contextlib.suppress(TimeoutError):
                await within(self._life_moved.wait(), pause_s)
            self._live(Wake())

    def _live(self, event: LifeEvent) -> None:
        """Pass an event to the `InstanceLife`, and carry out its effects."""
        assert self._engine_loop is not None
        for effect in self._life.on(event, time.monotonic()):
            if effect is LifeEffect.STOP_ADMITTING:
                self._engine_loop.post(Drain())
                self._send_status()
            elif effect is LifeEffect.OFFER:
                self._engine_loop.post(MoveOut())
        self._life_moved.set()

    def _accept_connection(self) -> Connection:
        assert self._asyncio_loop is not None
        connection = Connection(self._on_frame, self._on_closed)
        connection.max_frame_bytes = MAX_HELLO_BYTES
        connection.verify(verifier_of(m.LINK_CHANNEL, self._secrets), lambda: None)
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close("too many connections sent no Hello")
        self._strangers[connection] = None
        self._asyncio_loop.call_later(HELLO_DEADLINE_S, self._require_hello, connection)
        return connection

    def _require_hello(self, connection: Connection) -> None:
        if self._gateways.get(connection) is None:
            connection.close("no Hello in time")

    def _on_frame(self, connection: Connection, body: bytes) -> None:
        message = m.decode_to_instance(body)
        if self._gateways.get(connection) is None:
            return self._greet(connection, message)
        assert self._engine_loop is not None
        loop = self._engine_loop
        match message:
            case Add(spec=spec):
                if self._accept(connection, spec.sequence_id):
                    self._expect(spec)
                    loop.post(_in_time_of(loop, message))
            case Adopt(spec=spec, ticket=ticket):
                if self._accept(connection, spec.sequence_id, back=ticket.source == self._welcome.replica):
                    self._expect(spec)
                    loop.post(_in_time_of(loop, message))
            case Cancel(sequence_id=sequence_id):
                self._forget(sequence_id)
                loop.post(message)
            case Release():
                loop.post(message)
            case m.FactsRequest(hashes=hashes):
                self._send_facts(connection, hashes)
            case m.GatewayHello():
                raise LinkError("a second Hello")
        return None

    def _expect(self, spec: SequenceSpec) -> None:
        if spec.sampling.grammar is not None and self._grammars is not None:
            self._grammars.expect(spec.sampling.grammar)

    def _greet(self, connection: Connection, message: m.ToInstance) -> None:
        if not isinstance(message, m.GatewayHello):
            raise LinkError("the first frame must be a Hello")
        self._gateways[connection] = message
        self._strangers.pop(connection, None)
        connection.max_frame_bytes = m.MAX_FRAME_BYTES
        connection.send(self._welcome)
        self._send_status()

    def _accept(self, connection: Connection, sequence_id: SequenceId, *, back: bool = False) -> bool:
        """Whether to accept the sequence.

        Args:
            back: its blocks are here, and it only changes its name.
        """
        if self.draining and (not back or self._life.phase is LifePhase.GONE):
            refused = Refused(sequence_id, FailKind.DRAINING, "the instance is draining")
            connection.send(m.Frame(self._step, (refused,)))
            return False
        self._owner[sequence_id] = connection
        self.taken += 1
        self._count()
        self._load_changed()
        return True

    def _forget(self, sequence_id: SequenceId) -> None:
        self._owner.pop(sequence_id, None)
        self._count()

    def _count(self) -> None:
        if self.draining:
            self._live(Inside(len(self._owner)))

    def _on_closed(self, connection: Connection, reason: str) -> None:
        self._strangers.pop(connection, None)
        hello = self._gateways.pop(connection, None)
        self._visits.pop(connection, None)
        orphans = [s for s, owner in self._owner.items() if owner is connection]
        if hello is not None:
            logger.info("gateway %s disconnected (%s); %d sequences cancelled", hello.gateway, reason, len(orphans))
        for sequence_id in orphans:
            self._forget(sequence_id)
        if orphans and self._engine_loop is not None:
            for sequence_id in orphans:
                self._engine_loop.post(Cancel(sequence_id))

    def _dispatch(self, news: Iterable[LoopEvent]) -> None:
        """Group one turn's events by gateway and send each gateway one frame."""
        frames: defaultdict[Connection, list[News]] = defaultdict(list)
        step_time: StepTime | None = None
        changed = False
        scale = 1.0 if self._engine_loop is None else self._engine_loop.time_scale
        for item in news:
            if isinstance(item, StepTime):
                step_time = item if step_time is None else after(step_time, item)
                continue
            sequence_id = item.sequence_id
            owner = self._owner.get(sequence_id)
            if owner is None:
                continue
            if isinstance(item, VisitTimes):
                self._visits[owner].append(item if scale == 1.0 else in_real_time(item, scale))
                continue
            if isinstance(item, HandoffClosed):
                self._forget(sequence_id)
                continue
            changed = changed or changes_load(item)
            frames[owner].append(item if scale == 1.0 else in_time_of(item, scale))
            if ends(item):
                self._forget(sequence_id)
        self._step += 1
        if step_time is not None and scale != 1.0:
            step_time = step_time.in_real_time(scale)
        for connection, items in frames.items():
            try:
                connection.send(m.Frame(self._step, tuple(items), tuple(self._visits.pop(connection, ())), step_time))
            except LinkError:
                self._send_singly(connection, items)
        if changed:
            self._load_changed()

    def _send_singly(self, connection: Connection, items: Iterable[News]) -> None:
        """Send events in several frames. Effects: a sequence whose own event exceeds a frame is refused and ended."""
        for item in items:
            try:
                connection.send(m.Frame(self._step, (item,)))
            except LinkError as error:
                name = item.sequence_id
                refused = Refused(name, FailKind.INVALID, m.too_large(item, error))
                connection.send(m.Frame(self._step, (refused,)))
                self._forget(name)
                if self._engine_loop is not None:
                    self._engine_loop.post(Cancel(name))

    def _send_facts(self, connection: Connection, hashes: Sequence[BlockHash]) -> None:
        self._send_status()  # first: gateways show load by the latest status
        try:
            connection.send(m.InstanceFacts(self.facts() if not hashes else self.prefix_facts(hashes)))
        except LinkError as error:
            logger.warning("facts cannot be sent: %s", error)
            connection.send(m.InstanceFacts({}))

    async def _status_forever(self) -> None:
        while True:
            await asyncio.sleep(self._status_period_s if self._owner else self._idle_period_s)
            self._send_status()

    def _load_changed(self) -> None:
        if self._asyncio_loop is None:
            return  # not started
        pause_s = self._reports.on_change(self._linked, time.monotonic())
        if pause_s is not None:
            self._asyncio_loop.call_later(pause_s, self._report_change)

    def _report_change(self) -> None:
        if self._reports.due:
            self._send_status()

    @property
    def _linked(self) -> int:
        """Number of linked gateways."""
        return sum(hello is not None for hello in self._gateways.values())

    def _send_status(self) -> None:
        assert self._engine_loop is not None
        self._reports.on_report(time.monotonic())
        unseen, tokens = self._engine_loop.unseen  # before the snapshot: counting twice is better than not counting
        snapshot, paths = self._engine_loop.snapshot, self._trouble()
        scale = self._engine_loop.time_scale  # gateways count in real seconds
        status = Status(
            queued_tokens=snapshot.queued_tokens + tokens,
            waiting=snapshot.waiting + unseen,
            running=snapshot.running + snapshot.pulling + snapshot.fetching,
            blocks_free=snapshot.kv_blocks_total - snapshot.kv_blocks_used,
            draining=self.draining,
            progress_age_s=min(self._engine_loop.progress_age_s() / scale, CRASHED_AGE_S),
            tokens_per_s=snapshot.tokens_per_s,
            gateways=self._linked,
            step_limit_s=self._engine_loop.step_limit_s() / scale,
            lost_paths=paths.lost,
            slow_paths=paths.late,
            pulling=snapshot.pulling,
            fetching=snapshot.fetching,
            blocks_cached=snapshot.kv_blocks_cached,
            share=self.share,
            max_sequences=self.max_sequences,
            max_step_tokens=self.max_step_tokens,
        )
        for connection, hello in self._gateways.items():
            if hello is not None:
                connection.send(status)


def _in_time_of(loop: EngineLoop, order: Submission) -> Submission:
    """A request with its remaining time converted from real time to the engine's."""
    scale, spec = loop.time_scale, order.spec
    return order if scale == 1.0 else replace(order, spec=replace(spec, time_left_s=spec.time_left_s * scale))
