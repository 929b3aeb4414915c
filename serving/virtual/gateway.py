"""A gateway in virtual time: the core of the live gateway, driven by the event queue.

arrival ──gateway_s──► core ──commands──► instances ──events──► core ...

Instances report their load as in a live system, but only if the gateway is about to make a decision and the last report
is older than a live one would be, see `report_age_s`.
"""

import math

from serving.errors import LedgerError
from serving.gateway.core.events import (
    Broken,
    EndAll,
    GatewayEffect,
    GatewayEvent,
    InstanceDown,
    InstanceSays,
    InstanceStatus,
    InstanceUp,
    JobFailed,
    Look,
    PrefetchKv,
    Rejected,
    Routed,
    Submit,
    Unsent,
)
from serving.gateway.core.gateway import Gateway
from serving.gateway.core.settings import GatewaySettings
from serving.ids import BlockHash, NodeId, ReplicaId, RequestId, SequenceId
from serving.instance.core.load_reports import report_age_s
from serving.instance.core.placeholder import mix64, placeholder_prompt
from serving.values.instances import Status
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.news import Adopted, FailKind, News, Refused, Tokens
from serving.values.orders import Add, Adopt, Send
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.virtual.event_queue import EventQueue
from serving.virtual.journal_book import Book
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.pauses import SessionTurn, VirtualPauses
from serving.virtual.ports import Directory, InstancePort
from serving.virtual.result import Outcome

_NO_NODE = NodeId("")
_ROUTE_NOTHING = (Tokens, Adopted)


class VirtualGateway:
    """Gateway that owns the requests submitted to it.

    Args:
        status_period_s: interval of the instances' regular reports [s].
        gateways: number of gateways.
        timeout_s: deadline of each request [s].
        seed: of the whole run; the seed of a request is derived from it and the request's row.
        pool: from whose SSD tier waiting prompts are prefetched.
        pauses: None = tool pauses are not learned.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        queue: EventQueue,
        directory: Directory,
        book: Book,
        status_period_s: float,
        gateways: int,
        timeout_s: float,
        seed: int,
        pool: VirtualPool | None = None,
        pauses: VirtualPauses | None = None,
    ) -> None:
        self._settings = settings
        self._core = Gateway(settings)
        self._queue = queue
        self._directory = directory
        self._book = book
        self._report_age_s = report_age_s(status_period_s, gateways)
        self._gateways = gateways
        self._timeout_s = timeout_s
        self._seed = seed
        self._pool = pool
        self._pauses = pauses
        self._instances: dict[ReplicaId, InstancePort] = {}
        self._reported_at: dict[ReplicaId, float] = {}
        self._oldest_report = math.inf
        self._wake_at = math.inf
        self._down_until = 0.0
        self._unsent: list[Unsent] = []

    # ---- requests --------------------------------------------------------------------------------------------------

    def submit(
        self, request: tuple[int, int, int, tuple[BlockHash, ...]], key: str = "", turn: SessionTurn | None = None
    ) -> None:
        """Submit a request to the core; it fails at once while the gateway is down.

        Args:
            request: its row, prompt tokens, output tokens, and the hashes of its full blocks.
            key: API key of the request. turn: None = it is of no session.
        """
        row, prompt, output, hashes = request
        now, name = self._queue.now, self._settings.name
        if now < self._down_until:
            self._book.failed(row, FailKind.UNAVAILABLE, f"{name}-{row}/0", "the gateway is down", now)
            return
        spec = SequenceSpec(
            SequenceId(""),
            placeholder_prompt(prompt),
            SamplingParams(max_tokens=output, temperature=0.0, seed=mix64(self._seed ^ mix64(row))),
            time_left_s=self._timeout_s,
            prompt_hashes=hashes,
            claim=None if turn is None or self._pauses is None else self._pauses.entered(row, turn),
        )
        session = "" if turn is None else turn.named.session
        self._tell(Submit(row, GenerationJob(RequestId(""), (spec,), key, mark=row + 1, session=session)))

    def hear(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        """Receive events of sequences from an instance."""
        for one in news:
            if type(one) is Adopted:
                self._book.adopted(self._row(one.sequence_id), self._queue.now)
            elif type(one) is Refused and (base := one.sequence_id.rpartition("@")[0]) in self._core.choices:
                self._book.decided(self._queue.now, "refuse", base, one.kind.value, one.reason)
        self._tell(InstanceSays(replica, news))

    def learn(self, instance: InstancePort) -> None:
        """Add an instance that is up, with its current load."""
        self._instances[instance.name] = instance
        self._do(InstanceUp(instance.name, instance.pool, _NO_NODE, instance.kv_blocks))
        self.report(instance)
        self._set_alarm()

    def report(self, instance: InstancePort) -> None:
        """Report the current load of an instance to the core, unless the instance was given up."""
        if instance.name not in self._instances:
            return
        tokens, inside, free = instance.status()
        # These values are used only where requests wait here; otherwise the report skips them to stay fast.
        waiting, bounds = (instance.waiting(), instance.bounds()) if self._settings.limits.at_gateway else (0, (0, 0))
        status = Status(
            queued_tokens=tokens,
            waiting=waiting,
            running=inside - waiting,
            blocks_free=free,
            draining=instance.draining,
            progress_age_s=0.0,
            tokens_per_s=instance.tokens_per_s(),
            gateways=self._gateways,
            max_sequences=bounds[0],
            max_step_tokens=bounds[1],
        )
        self._reported_at[instance.name] = now = self._queue.now
        self._oldest_report = min(self._oldest_report, now)
        self._do(InstanceStatus(instance.name, status))

    def instance_lost(self, name: ReplicaId, still_since: float | None = None) -> None:
        """Remove an instance that was lost, and resubmit its requests.

        Args:
            still_since: last activity of an instance that is given up for its silence [s]; None = its process died.
        """
        if name not in self._instances:
            return  # already given up
        drained = self._instances.pop(name).draining
        del self._reported_at[name]
        before = self._failures()
        self._tell(InstanceDown(name, 0.0 if drained else still_since))
        self._book.hit += self._failures() - before

    def crash(self, until_s: float) -> int:
        """Crash the process: all its requests fail, and it is down until `until_s`.

        Returns: number of requests lost.
        """
        lost = self.open_requests
        self._do(EndAll("the gateway was lost"))
        self._core = Gateway(self._settings)
        if self._pauses is not None:
            self._pauses.crash()
        for instance in self._instances.values():
            self._do(InstanceUp(instance.name, instance.pool, _NO_NODE, instance.kv_blocks))
            self.report(instance)
        self._down_until = max(self._down_until, until_s)
        return lost

    @property
    def up(self) -> bool:
        """Whether it accepts requests."""
        return self._queue.now >= self._down_until

    @property
    def open_requests(self) -> int:
        """Number of requests that run or wait."""
        return self._core.running + len(self._core.room)

    def waiting(self) -> tuple[int, int]:
        """Requests that wait for their turn or for an instance to start, and their known tokens."""
        requests, tokens, _ = self._core.waiting(self._queue.now)
        return requests, tokens

    def abandon(self) -> None:
        """Mark the open requests as unfinished, at the end of the simulation."""
        for number in self._core.numbers():
            self._book.end(number, Outcome.UNFINISHED, self._queue.now)

    def check(self) -> None:
        """Check that the core's ledgers balance. Raises: LedgerError, AssertionError."""
        self._core.check()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _tell(self, event: GatewayEvent) -> None:
        """Deliver an event to the core, refresh old load reports before a decision, and set the next wake-up."""
        old = self._queue.now - self._report_age_s
        if self._oldest_report <= old and self._may_route(event):
            for name, instance in self._instances.items():
                if self._reported_at[name] <= old:
                    self.report(instance)
            self._oldest_report = min(self._reported_at.values(), default=math.inf)
        self._do(event)
        self._set_alarm()

    def _may_route(self, event: GatewayEvent) -> bool:
        """Whether an event may lead to a routing decision. Tokens do so only if requests wait for capacity."""
        if type(event) is not InstanceSays or len(self._core.room):
            return True
        for one in event.news:
            if type(one) not in _ROUTE_NOTHING:
                return True
        return False

    def _do(self, event: GatewayEvent) -> None:
        book, now = self._book, self._queue.now
        for effect in self._core.on(event, now):
            if type(effect) is SequenceUpdate:  # an `isinstance` that fails takes four times as long
                book.deliver(effect.number, effect.news, now, effect.queue_s)
                if effect.news.finish_reason is not None:
                    self._tell_pauses(effect.number, finished=True)
                    book.end(effect.number, Outcome.FINISHED, now)
            else:
                self._carry_out(effect)
        while self._unsent:
            self._tell(self._unsent.pop(0))

    def _carry_out(self, effect: GatewayEffect) -> None:
        now, book = self._queue.now, self._book
        if type(effect) is Send:
            self._send(effect)
            return
        if type(effect) is Routed:
            kind = "route decode" if effect.decode else "route prefill"
            book.decided(now, kind, effect.sequence_id, effect.decision.replica, effect.decision.reason)
            return
        match effect:
            case PrefetchKv():
                if self._pool is not None:
                    self._pool.prefetch(effect.namespace, effect.hashes, now)
            case JobFailed(number=row, failure=failure):
                self._tell_pauses(row, finished=False)
                book.failed(row, failure.kind, f"{self._settings.name}-{row}/0", failure.reason, now)
            case Rejected(number=row, reason=reason):
                book.decided(now, "reject", self._settings.name, "429", reason)
                self._tell_pauses(row, finished=False)
                book.end(row, Outcome.REJECTED, now)
            case Broken(trace=trace):
                raise LedgerError(f"a gateway failed on a request:\n{trace}")

    def _tell_pauses(self, row: int, *, finished: bool) -> None:
        if self._pauses is not None:
            self._pauses.ended(row, finished=finished)

    def _send(self, effect: Send) -> None:
        order = effect.order
        if type(order) is Add:
            self._book.sent(self._row(order.spec.sequence_id))
        if not self._directory.give(effect.replica, order) and isinstance(order, Add | Adopt):
            self._unsent.append(Unsent(effect.replica, order.spec.sequence_id))

    def _row(self, sequence_id: SequenceId) -> int:
        return int(sequence_id[len(self._settings.name) + 1 : sequence_id.index("/")])

    def _failures(self) -> int:
        return sum([choice.journal.attempts.total for choice in self._core.choices.values()])

    def _set_alarm(self) -> None:
        wake = self._core.next_wake()
        if wake < self._wake_at:
            self._wake_at = wake
            self._queue.at(wake, self._woken, wake)

    def _woken(self, when: float) -> None:
        if when != self._wake_at:
            return  # an earlier wake-up has been set since
        self._wake_at = math.inf
        if self._core.next_wake() <= self._queue.now:
            self._tell(Look())
        else:
            self._set_alarm()
