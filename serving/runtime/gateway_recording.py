"""A gateway whose decisions are recorded: the parts that `LiveBackend` decides with, each noting what it is asked.

Nothing of this is in the way when nothing is recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from serving.config.serve import ServeConfig
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.policy import admission_calls as a
from serving.policy import gateway_calls as c
from serving.policy.admission_queue import AdmissionQueue
from serving.policy.decision_log import perform
from serving.policy.gateway_admission import AdmissionDecision, Applicant
from serving.policy.gateway_router import GatewayRouter
from serving.policy.journal_commands import FailKind
from serving.policy.request import DraftUse, FinishReason, HandoffTicket, PoolUse, SequenceSpec, TokenLogprobs
from serving.policy.request_journal import Commands, SequenceJournal
from serving.policy.router import InstanceView, RouteDecision
from serving.runtime.decision_recorder import DecisionWriter

Note = Callable[[object, object], None]


class GatewayRecorder:
    """Makes a gateway's parts so that they record."""

    def __init__(self, writer: DecisionWriter, header: c.GatewayHeader) -> None:
        self._writer = writer
        self._brain = header.brain()

    def router(self) -> GatewayRouter:
        """The router, recorded."""
        return cast(GatewayRouter, RecordedRouter(self._brain, self._writer.note))

    def queue(self) -> AdmissionQueue:
        """The admission queue, recorded."""
        return cast(AdmissionQueue, RecordedQueue(self._brain, self._writer.note))

    def journal(self, spec: SequenceSpec, now: float, max_attempts: int) -> SequenceJournal:
        """A new journal, recorded."""
        brain = c.GatewayBrain(self._brain.router, self._brain.queue)
        _do(brain, self._writer.note, c.OpenJournal(spec, now, max_attempts))
        return cast(SequenceJournal, RecordedJournal(brain, spec.sequence_id, self._writer.note))

    def close(self) -> None:
        """Write what was noted, and the end."""
        self._writer.close()


def open_gateway_log(config: ServeConfig, header: c.GatewayHeader) -> GatewayRecorder | None:
    """A gateway's recorder; None when nothing is to be recorded.

    Args:
        header: what the gateway's parts are built with.
    Raises: ConfigError if the folder cannot be written.
    Effects: makes the log's file.
    """
    folder = config.engine.decision_log
    if not folder:
        return None
    return GatewayRecorder(DecisionWriter(folder, "gateway", header.name, header), header)


class RecordedQueue:
    """An `AdmissionQueue` that notes whatever it is told."""

    def __init__(self, brain: c.GatewayBrain, note: Note) -> None:
        self._brain = brain
        self._note = note

    def __len__(self) -> int:
        return len(self._brain.queue)

    @property
    def tokens(self) -> int:
        """As `AdmissionQueue`; so for all of these."""
        return self._brain.queue.tokens

    @property
    def oldest_since(self) -> float | None:
        """As that."""
        return self._brain.queue.oldest_since

    def offer(self, one: Applicant, running: int, now: float, is_open: bool = True) -> AdmissionDecision:
        """A request comes."""
        decision: AdmissionDecision = _do(self._brain, self._note, a.Offer(one, running, now, is_open))
        return decision

    def take(self, running: int, now: float) -> int | None:
        """Who starts now."""
        number: int | None = _do(self._brain, self._note, a.Take(running, now))
        return number

    def finished(self, residence_s: float) -> None:
        """A seat is free."""
        _do(self._brain, self._note, a.Finished(residence_s))

    def withdraw(self, number: int) -> bool:
        """A request gives up waiting."""
        waited: bool = _do(self._brain, self._note, a.Withdraw(number))
        return waited

    def overdue(self, now: float, before: float | None = None) -> tuple[int, ...]:
        """Those whose time is over."""
        numbers: tuple[int, ...] = _do(self._brain, self._note, a.Overdue(now, before))
        return numbers

    def check(self) -> None:
        """As that."""
        self._brain.queue.check()


class RecordedRouter:
    """A `GatewayRouter` that notes every question."""

    def __init__(self, brain: c.GatewayBrain, note: Note) -> None:
        self._brain = brain
        self._note = note

    @property
    def wants_hashes(self) -> bool:
        """As `GatewayRouter`; so for all of these."""
        return self._brain.router.wants_hashes

    def prefill(
        self,
        views: Sequence[InstanceView],
        tokens: int,
        exclude: Sequence[ReplicaId] = (),
        hashes: Sequence[BlockHash] = (),
    ) -> RouteDecision:
        """Where a prompt is computed."""
        call = c.RoutePrefill(tuple(views), tokens, tuple(exclude), tuple(hashes))
        decision: RouteDecision = _do(self._brain, self._note, call)
        return decision

    def forget(self, replica: ReplicaId) -> None:
        """An instance is gone."""
        _do(self._brain, self._note, c.Forget(replica))

    def decode(self, views: Sequence[InstanceView], blocks: int, exclude: Sequence[ReplicaId] = ()) -> RouteDecision:
        """Where a handoff goes."""
        decision: RouteDecision = _do(self._brain, self._note, c.RouteDecode(tuple(views), blocks, tuple(exclude)))
        return decision


class RecordedJournal:
    """A `SequenceJournal` that notes whatever it is told."""

    def __init__(self, brain: c.GatewayBrain, name: SequenceId, note: Note) -> None:
        self._brain = brain
        self._name = name
        self._note = note
        self._journal = brain.journal(name)
        self.spec = self._journal.spec
        self.deadline = self._journal.deadline
        self.attempts = self._journal.attempts
        self.output = self._journal.output
        """Grows with the journal's: it is the same list."""

    @property
    def done(self) -> bool:
        """As `SequenceJournal`; so for all of these."""
        return self._journal.done

    @property
    def live_id(self) -> SequenceId | None:
        """As that."""
        return self._journal.live_id

    @property
    def at(self) -> ReplicaId | None:
        """As that."""
        return self._journal.at

    def start(self) -> Commands:
        """The first thing to do."""
        return self._tell(c.Start(self._name))

    def prefill_routed(self, replica: ReplicaId, now: float) -> Commands:
        """An instance was chosen to compute it."""
        return self._tell(c.PrefillRouted(self._name, replica, now))

    def decode_routed(self, replica: ReplicaId, now: float) -> Commands:
        """An instance was chosen to adopt it."""
        return self._tell(c.DecodeRouted(self._name, replica, now))

    def serve_whole(self, replica: ReplicaId, now: float) -> Commands:
        """An instance was chosen to compute it and to go on to the end."""
        return self._tell(c.ServeWhole(self._name, replica, now))

    def decode_at_source(self, now: float) -> Commands:
        """Who holds the blocks goes on itself."""
        return self._tell(c.DecodeAtSource(self._name, now))

    def cancel(self) -> Commands:
        """Nobody waits for it any more."""
        return self._tell(c.CancelJournal(self._name))

    def give_up(self, kind: FailKind, reason: str) -> Commands:
        """No instance, or no time left."""
        return self._tell(c.GiveUp(self._name, kind, reason))

    def handoff_ready(
        self,
        sequence_id: SequenceId,
        ticket: HandoffTicket,
        position: int,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[TokenLogprobs, ...] = (),
        cached_tokens: int | None = None,
        pool: PoolUse | None = None,
    ) -> Commands:
        """Prefill is done. The journal gets the real ticket, the log one without its blocks."""
        noted = replace(ticket, blocks=())
        first = (logprobs, prompt_logprobs, cached_tokens, pool)
        call = c.HandoffReady(self._name, sequence_id, noted, position, tokens, *first)
        return self._tell(call, c.HandoffReady(self._name, sequence_id, ticket, position, tokens, *first))

    def adopted(self, sequence_id: SequenceId) -> Commands:
        """The decode instance has the blocks."""
        return self._tell(c.Adopted(self._name, sequence_id))

    def tokens(
        self,
        sequence_id: SequenceId,
        position: int,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...] = (),
        prompt_logprobs: tuple[TokenLogprobs, ...] = (),
        cached_tokens: int | None = None,
        finish_reason: FinishReason | None = None,
        pool: PoolUse | None = None,
        drafts: DraftUse | None = None,
    ) -> Commands:
        """New tokens, the end, or both."""
        first = (logprobs, prompt_logprobs, cached_tokens, finish_reason, pool, drafts)
        return self._tell(c.TokensTold(self._name, sequence_id, position, tokens, *first))

    def refused(self, sequence_id: SequenceId, kind: FailKind, reason: str, *, begun: bool = False) -> Commands:
        """The instance did not take it."""
        return self._tell(c.RefusedBy(self._name, sequence_id, kind, reason, begun))

    def leaving(self, sequence_id: SequenceId) -> Commands:
        """The instance drains and had rather be rid of it."""
        return self._tell(c.Leaving(self._name, sequence_id))

    def handoff_failed(self, sequence_id: SequenceId, reason: str) -> Commands:
        """The blocks could not be pulled."""
        return self._tell(c.HandoffLost(self._name, sequence_id, reason))

    def failed(self, sequence_id: SequenceId, reason: str) -> Commands:
        """The instance failed on it."""
        return self._tell(c.FailedAt(self._name, sequence_id, reason))

    def instance_lost(self, replica: ReplicaId, still_since: float | None = None) -> Commands:
        """An instance is gone."""
        return self._tell(c.InstanceLost(self._name, replica, still_since))

    def judged(self, lost: ReplicaId, *, alone: bool) -> Commands:
        """Whether the instance where it was tried was lost alone."""
        return self._tell(c.Judged(self._name, lost, alone))

    def unsent(self, replica: ReplicaId) -> Commands:
        """The link was down when it was to be sent."""
        return self._tell(c.Unsent(self._name, replica))

    def _tell(self, noted: c.GatewayCall, carried_out: c.GatewayCall | None = None) -> Commands:
        commands: Commands = _do(self._brain, self._note, noted, carried_out)
        return commands


def _do(brain: c.GatewayBrain, note: Note, noted: Any, carried_out: Any = None) -> Any:  # noqa: ANN401 - any call
    output, kept, error = perform(carried_out or noted, brain)
    note(noted, kept)
    if error is not None:
        raise error
    return output
