"""Every decision of a gateway as a value: admission, routes, and each sequence's journal.

One `GatewayBrain` per gateway is what a log is replayed on; live, the same calls are carried out on its parts.
"""

from dataclasses import dataclass, field

import msgspec

from serving.errors import DecisionLogError
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.policy.admission_calls import Finished, Offer, Overdue, Take, Withdraw
from serving.policy.admission_queue import AdmissionQueue
from serving.policy.decision_log import CallRecord, End
from serving.policy.gateway_admission import AdmissionLimits
from serving.policy.gateway_router import GatewayRouter
from serving.policy.journal_commands import FailKind
from serving.policy.request import DraftUse, FinishReason, HandoffTicket, PoolUse, SequenceSpec, TokenLogprobs
from serving.policy.request_journal import Commands, SequenceJournal
from serving.policy.router import InstanceView, RouteDecision, Rule

_LIMITS = AdmissionLimits(512, 1_000_000, 256)
"""As the configuration has them by default."""


class GatewayHeader(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a gateway's router and its admission queue were built with."""

    name: str
    max_age_s: float
    block_tokens: int
    history_blocks: int
    version: str = ""
    rule: Rule | None = None
    seed: int = 0
    attention_tokens: float = 0.0
    limits: AdmissionLimits = _LIMITS

    def router(self) -> GatewayRouter:
        """A router that was asked nothing yet."""
        blocks = self.block_tokens, self.history_blocks
        return GatewayRouter(self.max_age_s, *blocks, self.rule, self.seed, self.attention_tokens)

    def brain(self) -> "GatewayBrain":
        """All of the gateway, before its first decision."""
        return GatewayBrain(self.router(), AdmissionQueue(self.limits))


@dataclass(slots=True)
class GatewayBrain:
    """What a gateway decides with."""

    router: GatewayRouter
    queue: AdmissionQueue = field(default_factory=lambda: AdmissionQueue(_LIMITS))
    journals: dict[SequenceId, SequenceJournal] = field(default_factory=dict)

    def journal(self, sequence_id: SequenceId) -> SequenceJournal:
        """A sequence's journal.

        Raises: DecisionLogError if it was never opened.
        """
        if (journal := self.journals.get(sequence_id)) is None:
            raise DecisionLogError(f"news of {sequence_id}, whose journal was never opened")
        return journal


class RoutePrefill(CallRecord, frozen=True):
    """Which instance computes a prompt?"""

    views: tuple[InstanceView, ...]
    tokens: int
    exclude: tuple[ReplicaId, ...]
    hashes: tuple[BlockHash, ...]

    def on(self, brain: GatewayBrain) -> RouteDecision:
        """Carry it out."""
        return brain.router.prefill(self.views, self.tokens, self.exclude, self.hashes)


class RouteDecode(CallRecord, frozen=True):
    """Which instance takes a handoff?"""

    views: tuple[InstanceView, ...]
    blocks: int
    exclude: tuple[ReplicaId, ...]

    def on(self, brain: GatewayBrain) -> RouteDecision:
        """Carry it out."""
        return brain.router.decode(self.views, self.blocks, self.exclude)


class Forget(CallRecord, frozen=True):
    """An instance is gone."""

    replica: ReplicaId

    def on(self, brain: GatewayBrain) -> None:
        """Carry it out."""
        brain.router.forget(self.replica)


class OpenJournal(CallRecord, frozen=True):
    """A sequence is accepted."""

    spec: SequenceSpec
    now: float
    max_attempts: int

    def on(self, brain: GatewayBrain) -> None:
        """Carry it out."""
        brain.journals[self.spec.sequence_id] = SequenceJournal(self.spec, self.now, self.max_attempts)


class JournalCall(CallRecord, frozen=True):
    """Base of what a journal is told; the methods of `SequenceJournal`."""

    journal: SequenceId

    def title(self) -> str:
        """Names the sequence too."""
        return f"{type(self).__name__} of {self.journal}"


class Start(JournalCall, frozen=True):
    """The first thing to do."""

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).start()


class PrefillRouted(JournalCall, frozen=True):
    """An instance was chosen to compute it."""

    replica: ReplicaId
    now: float

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).prefill_routed(self.replica, self.now)


class DecodeRouted(JournalCall, frozen=True):
    """An instance was chosen to adopt it."""

    replica: ReplicaId
    now: float

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).decode_routed(self.replica, self.now)


class ServeWhole(JournalCall, frozen=True):
    """An instance was chosen to compute it and to go on to the end."""

    replica: ReplicaId
    now: float

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).serve_whole(self.replica, self.now)


class DecodeAtSource(JournalCall, frozen=True):
    """Who holds the blocks goes on itself."""

    now: float

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).decode_at_source(self.now)


class CancelJournal(JournalCall, frozen=True):
    """Nobody waits for it any more."""

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).cancel()


class GiveUp(JournalCall, frozen=True):
    """No instance, or no time left."""

    kind: FailKind
    reason: str

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).give_up(self.kind, self.reason)


class HandoffReady(JournalCall, frozen=True):
    """Prefill is done. The ticket comes without its blocks: a journal only passes them on."""

    sequence_id: SequenceId
    ticket: HandoffTicket
    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    pool: PoolUse | None = None

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        told = (self.position, self.tokens, self.logprobs, self.prompt_logprobs, self.cached_tokens, self.pool)
        return brain.journal(self.journal).handoff_ready(self.sequence_id, self.ticket, *told)


class Adopted(JournalCall, frozen=True):
    """The decode instance has the blocks."""

    sequence_id: SequenceId

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).adopted(self.sequence_id)


class TokensTold(JournalCall, frozen=True):
    """New tokens, the end, or both."""

    sequence_id: SequenceId
    position: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    pool: PoolUse | None = None
    drafts: DraftUse | None = None

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        first = (self.logprobs, self.prompt_logprobs, self.cached_tokens)
        return brain.journal(self.journal).tokens(
            self.sequence_id, self.position, self.tokens, *first, self.finish_reason, self.pool, self.drafts
        )


class RefusedBy(JournalCall, frozen=True):
    """The instance did not take it."""

    sequence_id: SequenceId
    kind: FailKind
    reason: str
    begun: bool = False

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).refused(self.sequence_id, self.kind, self.reason, begun=self.begun)


class Leaving(JournalCall, frozen=True):
    """The instance drains and had rather be rid of it."""

    sequence_id: SequenceId

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).leaving(self.sequence_id)


class HandoffLost(JournalCall, frozen=True):
    """The blocks could not be pulled."""

    sequence_id: SequenceId
    reason: str

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).handoff_failed(self.sequence_id, self.reason)


class FailedAt(JournalCall, frozen=True):
    """The instance failed on it."""

    sequence_id: SequenceId
    reason: str

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).failed(self.sequence_id, self.reason)


class InstanceLost(JournalCall, frozen=True):
    """An instance is gone."""

    replica: ReplicaId
    still_since: float | None = None

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).instance_lost(self.replica, self.still_since)


class Judged(JournalCall, frozen=True):
    """Whether the instance where it was tried was lost alone."""

    lost: ReplicaId
    alone: bool

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).judged(self.lost, alone=self.alone)


class Unsent(JournalCall, frozen=True):
    """The link was down when it was to be sent."""

    replica: ReplicaId

    def on(self, brain: GatewayBrain) -> Commands:
        """Carry it out."""
        return brain.journal(self.journal).unsent(self.replica)


GatewayCall = (
    Offer
    | Take
    | Finished
    | Withdraw
    | Overdue
    | RoutePrefill
    | RouteDecode
    | Forget
    | OpenJournal
    | Start
    | PrefillRouted
    | DecodeRouted
    | ServeWhole
    | DecodeAtSource
    | CancelJournal
    | GiveUp
    | HandoffReady
    | Adopted
    | TokensTold
    | RefusedBy
    | Leaving
    | HandoffLost
    | FailedAt
    | InstanceLost
    | Judged
    | Unsent
    | End
)
