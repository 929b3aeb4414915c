"""The gateway's record of one sequence: enough to go on anywhere, whatever is lost on the way.

    ROUTING ─prefill_routed─► PREFILLING ─handoff_ready─► HANDED_OFF ─decode_routed─► MOVING ─adopted─► DECODING
       ▲                          │  └────── tokens (one pool does both) ──────────────────────────────────▲ │
       └── lost, failed, refused, handoff failed, gap: resubmitted as prompt + output so far ◄───────────────┘
    any ── last token, cancel, deadline, no attempt left ──► DONE

Everything sent to an instance carries an id of its own, `<sequence>@<number>`. News of any other than the live one is
late: it changes nothing, and whoever still works on it is told to stop. News carries the position of its first token,
so what was delivered is never delivered again, and a missing frame shows as a gap and leads to a resubmission.

Methods return the commands to carry out, in order; nothing here waits or sends.
"""

from enum import Enum

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.ids import ReplicaId, SequenceId
from serving.policy.journal_commands import (
    Command,
    Deliver,
    Fail,
    FailKind,
    NeedDecode,
    NeedPrefill,
    SendAdopt,
    SendCancel,
    SendPrefill,
    SendRelease,
)
from serving.policy.request import DraftUse, FinishReason, HandoffTicket, PoolUse, SequenceSpec, TokenLogprobs

Commands = tuple[Command, ...]


class JournalPhase(Enum):
    """Who has to act next."""

    ROUTING = "routing"
    PREFILLING = "prefilling"
    HANDED_OFF = "handed off"
    MOVING = "moving"
    DECODING = "decoding"
    DONE = "done"


_AT_INSTANCE = (JournalPhase.PREFILLING, JournalPhase.MOVING, JournalPhase.DECODING)


class SequenceJournal:
    """One sequence from acceptance to its end."""

    def __init__(self, spec: SequenceSpec, now: float, max_attempts: int = 3) -> None:
        """
        Args:
            spec: the order; its `sequence_id` is the base of the ids sent to instances.
            now: gateway time [s]; the deadline counts from here.
            max_attempts: failures of any kind after which the sequence is given up.
        """
        self.spec = spec
        self.deadline = now + spec.time_left_s
        self.max_attempts = max_attempts
        self.phase = JournalPhase.ROUTING
        self.output: list[int] = list(spec.output)
        self.replica: ReplicaId | None = None
        """The instance that works on the live submission."""
        self.failures = 0
        self._sent: dict[SequenceId, ReplicaId] = {}
        self._live_id: SequenceId | None = None
        self._told_to_stop: set[SequenceId] = set()
        self._ticket: HandoffTicket | None = None
        self._excluded: list[ReplicaId] = []
        self._first_delivered = False

    @property
    def done(self) -> bool:
        """Nothing more will be delivered."""
        return self.phase is JournalPhase.DONE

    # ---- what the gateway decides --------------------------------------------------------------------------------

    def start(self) -> Commands:
        """The first thing to do."""
        return (self._need_prefill(),)

    def prefill_routed(self, replica: ReplicaId, now: float) -> Commands:
        """An instance was chosen to compute what is known.

        Raises: LedgerError if nothing was to be routed.
        """
        self._expect(JournalPhase.ROUTING)
        self.phase = JournalPhase.PREFILLING
        return (SendPrefill(replica, self._submission(replica, now)),)

    def decode_routed(self, replica: ReplicaId, now: float) -> Commands:
        """An instance was chosen to adopt the handoff.

        Raises: LedgerError if no handoff waits.
        """
        self._expect(JournalPhase.HANDED_OFF)
        assert self._ticket is not None, "handed off means that a ticket waits"
        self.phase = JournalPhase.MOVING
        return (SendAdopt(replica, self._submission(replica, now), self._ticket),)

    def cancel(self) -> Commands:
        """The client left, or a stop string matched. Idempotent."""
        return self._end()

    def give_up(self, kind: FailKind, reason: str) -> Commands:
        """No instance, or no time left: end with an error."""
        return () if self.done else (*self._end(), Fail(kind, reason))

    # ---- what instances tell -------------------------------------------------------------------------------------

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
        """Prefill is done; the first token goes to the client at once."""
        if self._ticket is not None and ticket.ticket_id == self._ticket.ticket_id:
            return ()  # a duplicate of what is under way
        if sequence_id != self._live_id or self.phase is not JournalPhase.PREFILLING:
            return (SendRelease(ticket.source, ticket.ticket_id),)
        self._ticket = ticket
        if position > len(self.output):
            return self._resubmit(FailKind.ENGINE, "a frame was lost", cancel=False)
        deliver = self._deliver(position, tokens, logprobs, prompt_logprobs, cached_tokens, None, pool)
        self.phase = JournalPhase.HANDED_OFF
        return (*deliver, self._need_decode(ticket))

    def adopted(self, sequence_id: SequenceId) -> Commands:
        """The decode instance has the blocks: the source may free its copy."""
        if sequence_id != self._live_id:
            return self._late(sequence_id)
        if self.phase is not JournalPhase.MOVING:
            return ()
        self.phase = JournalPhase.DECODING
        return self._drop_ticket()

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
        if sequence_id != self._live_id or self.phase not in _AT_INSTANCE:
            return self._late(sequence_id)
        if position > len(self.output):
            return self._resubmit(FailKind.ENGINE, "a frame was lost", cancel=finish_reason is None)
        # Tokens from an adopting instance prove the adoption, should its own notice be missing.
        commands = self._drop_ticket()
        self.phase = JournalPhase.DECODING
        if finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            deliver = self._deliver(position, tokens, logprobs, prompt_logprobs, cached_tokens, None, pool, drafts)
            again = self._resubmit(FailKind.ENGINE, f"the instance ended it: {finish_reason.value}", cancel=False)
            return (*commands, *deliver, *again)
        if finish_reason is FinishReason.DEADLINE:
            deliver = self._deliver(position, tokens, logprobs, prompt_logprobs, cached_tokens, None, pool, drafts)
            self._close()
            return (*commands, *deliver, Fail(FailKind.DEADLINE, "the deadline passed at the instance"))
        deliver = self._deliver(position, tokens, logprobs, prompt_logprobs, cached_tokens, finish_reason, pool, drafts)
        if finish_reason is not None:
            self._close()
        return (*commands, *deliver)

    def refused(self, sequence_id: SequenceId, kind: FailKind, reason: str) -> Commands:
        """The instance did not take the submission. An invalid one is not tried elsewhere."""
        if sequence_id != self._live_id or self.phase not in _AT_INSTANCE:
            return ()
        if kind is FailKind.INVALID:
            self._live_id = None
            return self.give_up(kind, reason)
        if self.phase is not JournalPhase.MOVING or self._ticket is None:
            return self._resubmit(kind, reason, cancel=False)
        if not self._may_retry():
            self._live_id = None
            return self.give_up(kind, reason)
        self._live_id = None
        self.phase = JournalPhase.HANDED_OFF  # the blocks are still held: only the target changes
        return (self._need_decode(self._ticket),)

    def handoff_failed(self, sequence_id: SequenceId, reason: str) -> Commands:
        """The blocks could not be pulled; the adopting instance has forgotten the sequence."""
        return self.failed(sequence_id, f"handoff: {reason}")

    def failed(self, sequence_id: SequenceId, reason: str) -> Commands:
        """The instance failed on the sequence and has forgotten it."""
        if sequence_id != self._live_id or self.phase not in _AT_INSTANCE:
            return ()
        return self._resubmit(FailKind.ENGINE, reason, cancel=False, distrust=True)

    def instance_lost(self, replica: ReplicaId) -> Commands:
        """An instance is gone. While its blocks are being pulled the pull itself will tell how that ended."""
        if self.phase in _AT_INSTANCE and self.replica == replica:
            return self._resubmit(FailKind.UNAVAILABLE, f"{replica} was lost", cancel=False)
        if self.phase is JournalPhase.HANDED_OFF and self._ticket is not None and self._ticket.source == replica:
            return self._resubmit(FailKind.UNAVAILABLE, f"{replica} was lost with the blocks", cancel=False)
        return ()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _expect(self, phase: JournalPhase) -> None:
        if self.phase is not phase:
            raise LedgerError(f"{self.spec.sequence_id} is {self.phase.value}, not {phase.value}")

    def _submission(self, replica: ReplicaId, now: float) -> SequenceSpec:
        """The order as it is sent next: a new id, the output so far, the time that is left."""
        self._live_id = SequenceId(f"{self.spec.sequence_id}@{len(self._sent) + 1}")
        self._sent[self._live_id] = replica
        self.replica = replica
        sampling = self.spec.sampling
        if self._first_delivered and sampling.prompt_logprobs is not None:
            sampling = replace(sampling, prompt_logprobs=None)
        return replace(
            self.spec,
            sequence_id=self._live_id,
            sampling=sampling,
            output=tuple(self.output),
            time_left_s=self.deadline - now,
        )

    def _need_prefill(self) -> NeedPrefill:
        return NeedPrefill(len(self.spec.prompt) + len(self.output), tuple(self._excluded))

    def _need_decode(self, ticket: HandoffTicket) -> NeedDecode:
        return NeedDecode(ticket, tuple(self._excluded))

    def _deliver(
        self,
        position: int,
        tokens: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...],
        prompt_logprobs: tuple[TokenLogprobs, ...],
        cached_tokens: int | None,
        finish_reason: FinishReason | None,
        pool: PoolUse | None,
        drafts: DraftUse | None = None,
    ) -> Commands:
        """Book what is new of a frame that leaves no gap."""
        known = len(self.output) - position
        new, new_logprobs = tokens[known:], logprobs[known:]
        if not new and finish_reason is None:
            return ()
        self.output.extend(new)
        if self._first_delivered:
            prompt_logprobs, cached_tokens, pool = (), None, None
        self._first_delivered = True
        return (Deliver(new, new_logprobs, prompt_logprobs, cached_tokens, finish_reason, pool, drafts),)

    def _resubmit(self, kind: FailKind, reason: str, *, cancel: bool, distrust: bool = False) -> Commands:
        """Leave the live submission and start again elsewhere with the output so far, or fail.

        Args:
            cancel: the instance still works on it and must be told to stop.
            distrust: of the blocks of a handoff that failed.
        """
        commands = self._drop_ticket(distrust)
        if cancel and self._live_id is not None:
            commands += self._late(self._live_id)
        self._live_id = None
        if not self._may_retry():
            self.phase = JournalPhase.DONE
            return (*commands, Fail(kind, f"{reason}; given up after {self.failures} attempts"))
        self.phase = JournalPhase.ROUTING
        return (*commands, self._need_prefill())

    def _may_retry(self) -> bool:
        """Count a failure of the live instance."""
        self.failures += 1
        if self.replica is not None and self.replica not in self._excluded:
            self._excluded.append(self.replica)
        return self.failures < self.max_attempts

    def _drop_ticket(self, distrust: bool = False) -> Commands:
        ticket, self._ticket = self._ticket, None
        return () if ticket is None else (SendRelease(ticket.source, ticket.ticket_id, distrust),)

    def _late(self, sequence_id: SequenceId) -> Commands:
        """Somebody works on a submission that is not wanted any more: tell them, once."""
        replica = self._sent.get(sequence_id)
        if replica is None or sequence_id in self._told_to_stop:
            return ()
        self._told_to_stop.add(sequence_id)
        return (SendCancel(replica, sequence_id),)

    def _end(self) -> Commands:
        if self.done:
            return ()
        commands = self._drop_ticket()
        if self._live_id is not None and self.phase in _AT_INSTANCE:
            commands += self._late(self._live_id)
        self._close()
        return commands

    def _close(self) -> None:
        if self._live_id is not None:
            self._told_to_stop.add(self._live_id)  # it has ended by itself
        self._live_id = None
        self.phase = JournalPhase.DONE
