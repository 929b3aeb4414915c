"""The gateway's record of one sequence, sufficient to resume it on any instance after a failure.

The phases are those of `JournalPhase`. Each submission to an instance has its own id, `<sequence>@<number>`. An event
of any submission but the live one is late: it changes no state, and its instance receives a cancel. An event contains
the position of its first token, so no token is delivered twice, and a missing frame shows as a gap and causes a
resubmission. Draining is not a failure: sequences that a draining instance declines or wants moved are resubmitted
elsewhere without counting one.
Methods return the commands to carry out, in order; this module neither waits nor sends.
"""

from msgspec.structs import replace

from serving.errors import LedgerError
from serving.gateway.core.attempts import Attempts
from serving.gateway.core.journal_commands import FINAL, AtSource, Command, NeedDecode, NeedPrefill, NeedTrial
from serving.gateway.core.journal_phase import AT_INSTANCE, JournalPhase
from serving.ids import ReplicaId, SequenceId
from serving.values.jobs import Fail
from serving.values.news import Adopted, FailKind, Leaving, Lost, News, Prefilled, Refused, Tokens
from serving.values.orders import Add, Adopt, Cancel, Release, Send
from serving.values.sequence import FinishReason, HandoffTicket, SequenceSpec

Commands = tuple[Command, ...]


class SequenceJournal:
    """One sequence from acceptance to its end."""

    def __init__(self, spec: SequenceSpec, now: float, max_attempts: int = 3) -> None:
        """
        Args:
            spec: the sequence; its `sequence_id` is the base of the ids sent to instances.
            now: gateway time [s]; start of the deadline.
            max_attempts: failures of any kind, without progress in between, after which the sequence is abandoned.
        """
        self.spec = spec
        self.deadline = now + spec.time_left_s
        self.phase = JournalPhase.ROUTING
        self.output: list[int] = list(spec.output)
        self.replica: ReplicaId | None = None
        """The instance that works on the live submission."""
        self.attempts = Attempts(max_attempts)
        self._sent: dict[SequenceId, ReplicaId] = {}
        self._sent_at = now
        self._live_id: SequenceId | None = None
        self._told_to_stop: set[SequenceId] = set()
        self._ticket: HandoffTicket | None = None
        self._at_source = AtSource.AFTER_GRACE
        self._first_delivered = False

    @property
    def done(self) -> bool:
        """Whether delivery has ended."""
        return self.phase is JournalPhase.DONE

    @property
    def at(self) -> ReplicaId | None:
        """The instance that has the live submission."""
        return self.replica if self.phase in AT_INSTANCE else None

    @property
    def live_id(self) -> SequenceId | None:
        """Id of the live submission; None while there is none."""
        return self._live_id

    # ---- decisions of the gateway --------------------------------------------------------------------------------

    def start(self) -> Commands:
        """The first command."""
        return (self._need_prefill(),)

    def prefill_routed(self, replica: ReplicaId, now: float) -> Commands:
        """Submit the prompt and the output so far to the chosen instance.

        Raises: LedgerError if the sequence was not waiting to be routed.
        """
        self._expect(JournalPhase.ROUTING)
        self.phase = JournalPhase.PREFILLING
        return (Send(replica, Add(self._submission(replica, now))),)

    def serve_whole(self, replica: ReplicaId, now: float) -> Commands:
        """Submit the sequence to one instance for prefill and decode: there is no decode instance, or it is on trial.

        Raises: LedgerError if the sequence was not waiting to be routed.
        """
        self._expect(JournalPhase.ROUTING)
        self.phase = JournalPhase.PREFILLING
        order = replace(self._submission(replica, now), whole=True)
        self.attempts.sent_alone()
        return (Send(replica, Add(order)),)

    def decode_routed(self, replica: ReplicaId, now: float) -> Commands:
        """Submit the handoff to the chosen instance.

        Raises: LedgerError if no handoff waits.
        """
        self._expect(JournalPhase.HANDED_OFF)
        return self._send_adopt(replica, now)

    def decode_at_source(self, now: float) -> Commands:
        """Decode on the instance that holds the blocks, in any role: no other instance can adopt the handoff.

        Raises: LedgerError if no handoff is pending.
        """
        self._expect(JournalPhase.HANDED_OFF)
        return self._send_adopt(None, now)

    def cancel(self) -> Commands:
        """End without an error: the client left, or a stop string matched. Idempotent."""
        return self._end()

    def give_up(self, kind: FailKind, reason: str) -> Commands:
        """End with an error: no instance, or no time left."""
        return () if self.done else (*self._end(), Fail(kind, reason))

    # ---- events of instances -------------------------------------------------------------------------------------

    def on_instance_event(self, event: News, *, begun: bool = False) -> Commands:
        """Process an instance's event about one of the submissions.

        Args:
            begun: whether the client has received output of the request, of any of its sequences.
        """
        match event:
            case Tokens():
                return self._on_tokens(event)
            case Prefilled():
                return self._on_prefilled(event.first, event.ticket)
            case Adopted(sequence_id=sequence_id):
                return self._on_adopted(sequence_id)
            case Lost(sequence_id=sequence_id, reason=reason):
                return self._on_lost(sequence_id, reason)
            case Refused():
                return self._on_refused(event, begun=begun)
            case Leaving(sequence_id=sequence_id):
                return self._on_leaving(sequence_id)

    def _on_prefilled(self, first: Tokens, ticket: HandoffTicket) -> Commands:
        """Accept blocks that are ready to pull: prefill is done, or a draining instance hands the sequence over.

        The first token after a prompt is delivered immediately.
        """
        if self._ticket is not None and ticket.ticket_id == self._ticket.ticket_id:
            return ()  # a duplicate of the handoff in progress
        if first.sequence_id != self._live_id or self.phase not in AT_INSTANCE:
            return (Send(ticket.source, Release(ticket.ticket_id)),)
        commands = self._drop_ticket()  # an instance that hands a stream on has adopted it, even without the notice
        prompt_done = self.phase is JournalPhase.PREFILLING
        self._at_source = AtSource.AFTER_GRACE if prompt_done else AtSource.IF_ALONE
        self._ticket = ticket
        if first.position > len(self.output):
            return (*commands, *self._resubmit(FailKind.ENGINE, "a frame was lost", cancel=False))
        if deliver := self._deliver(first, None):
            self.attempts.progress(decoding=False)
        self.phase = JournalPhase.HANDED_OFF
        return (*commands, *deliver, self._need_decode(ticket))

    def _on_adopted(self, sequence_id: SequenceId) -> Commands:
        """Release the blocks at the source, after the decode instance has pulled them."""
        if sequence_id != self._live_id:
            return self._late(sequence_id)
        if self.phase is not JournalPhase.MOVING:
            return ()
        self.phase = JournalPhase.DECODING
        return self._drop_ticket()

    def _on_tokens(self, event: Tokens) -> Commands:
        """Handle new tokens, the end, or both."""
        finish_reason = event.finish_reason
        if event.sequence_id != self._live_id or self.phase not in AT_INSTANCE:
            return self._late(event.sequence_id)
        if event.position > len(self.output):
            return self._resubmit(FailKind.ENGINE, "a frame was lost", cancel=finish_reason is None)
        if finish_reason is None and self.phase is JournalPhase.DECODING and self._ticket is None:
            first = event.cached_tokens is not None or event.pool is not None or bool(event.prompt_logprobs)
            if event.position == len(self.output) and event.tokens and not first:  # nearly always: the stream goes on
                self.output.extend(event.tokens)
                self._first_delivered = True
                self.attempts.progress(decoding=True)
                return (event,)
        # Tokens from an adopting instance prove the adoption, even if its notice is missing.
        commands = self._drop_ticket()
        new = event.position + len(event.tokens) - len(self.output)
        # An instance that does both sends the prompt's token first, which is not yet progress, see `Attempts`.
        if new > 0 and (self.phase is not JournalPhase.PREFILLING or new > 1):
            self.attempts.progress(decoding=True)
        self.phase = JournalPhase.DECODING
        end = finish_reason if finish_reason in (FinishReason.STOP, FinishReason.LENGTH) else None
        commands += self._deliver(event, end)
        if finish_reason != end and finish_reason not in FINAL:
            reason = f"the instance aborted it: {FinishReason(finish_reason).value}"
            return (*commands, *self._resubmit(FailKind.ENGINE, reason, cancel=False))
        if finish_reason is not None:
            self._close()
        return (*commands, Fail(*FINAL[finish_reason])) if finish_reason in FINAL else commands

    def _on_refused(self, event: Refused, *, begun: bool) -> Commands:
        """Handle a refusal: an invalid request ends; if all are full, it waits only if it has sent output (`begun`)."""
        kind, reason = event.kind, event.reason
        if event.sequence_id != self._live_id or self.phase not in AT_INSTANCE:
            return ()
        self._live_id = None
        if kind is FailKind.INVALID:
            return self.give_up(kind, reason)
        if kind is FailKind.DRAINING and not self._is_at_source():
            return self._elsewhere()
        full = kind is FailKind.OVERLOADED and (begun or self._first_delivered) and not self._is_at_source()
        if not full and (self.phase is not JournalPhase.MOVING or self._ticket is None or self._is_at_source()):
            return self._resubmit(kind, reason, cancel=False)  # a source refuses only blocks that it no longer has
        asked_before = self.replica in self.attempts.excluded
        if not full and not self.attempts.failed(self.replica):
            return self.give_up(kind, reason)
        if self._at_source is AtSource.IF_ALONE:
            self._at_source = AtSource.NOW
        return self._elsewhere(later=full and asked_before)

    def _on_leaving(self, sequence_id: SequenceId) -> Commands:
        """Move a sequence off a draining instance that does not decode it yet, or whose offer no instance can adopt.

        This counts no failure. The instance continues until it receives a cancel, so call this only while another
        instance is available.
        """
        offered = self.phase is JournalPhase.HANDED_OFF and self._at_source is not AtSource.AFTER_GRACE
        if offered and sequence_id == self._live_id:
            self._live_id = None
            return (*self._drop_ticket(), *self._elsewhere())
        if sequence_id != self._live_id or self.phase not in AT_INSTANCE or self._is_at_source():
            return ()  # it has moved on since, or stays because there was no other instance
        commands = self._late(sequence_id)
        self._live_id = None
        return (*commands, *self._elsewhere())

    def _on_lost(self, sequence_id: SequenceId, reason: str) -> Commands:
        """Resubmit a sequence that failed and was dropped at its instance, or at the source of its pull."""
        if sequence_id != self._live_id or self.phase not in AT_INSTANCE:
            return ()
        if self._ticket is not None and not self._is_at_source():
            self.attempts.avoid(self._ticket.source)
        return self._resubmit(FailKind.ENGINE, reason, cancel=False, distrust=True)

    # ---- losses of instances -------------------------------------------------------------------------------------

    def instance_lost(
        self, replica: ReplicaId, still_since: float | None = None, *, together: bool = False
    ) -> Commands:
        """Handle the loss of an instance. While its blocks are being pulled, the result of the pull decides instead.

        Args:
            still_since: gateway time since which it made no progress [s]; a later submission without tokens is none.
            together: another instance was lost just before; a sequence affected by both counts a single failure.
        """
        if self.phase in AT_INSTANCE and self.replica == replica:
            self._live_id = None
            early = still_since is not None and still_since < self._sent_at
            if early and not (self.attempts.notified or self._is_at_source()):
                return self._elsewhere()
            tried = self.attempts.lost()
            if not self.attempts.on_trial:
                return self._left(replica, again=not together)
            self.attempts.avoid(replica)
            self.phase = JournalPhase.ROUTING
            return (*self._drop_ticket(), self._need_prefill(lost=replica if tried else None))
        if self.phase is JournalPhase.HANDED_OFF and self._ticket is not None and self._ticket.source == replica:
            lost = f"{replica} was lost with the blocks"
            return self._resubmit(FailKind.UNAVAILABLE, lost, cancel=False, again=not together)
        return ()

    def judged(self, lost: ReplicaId, *, alone: bool) -> Commands:
        """End the sequence, or start another trial, depending on whether the trial instance was lost `alone`."""
        if self.phase is not JournalPhase.ROUTING or not self.attempts.on_trial:
            return ()
        verdict = self.attempts.judged(lost, alone=alone)
        return (self._need_prefill(),) if verdict is None else self.give_up(*verdict)

    def unsent(self, replica: ReplicaId) -> Commands:
        """Handle a submission that was not sent because its link had closed; the first time counts no failure."""
        if self.phase not in AT_INSTANCE or self.replica != replica:
            return ()
        return self._left(replica, again=replica in self.attempts.excluded)

    # ---- internals -----------------------------------------------------------------------------------------------

    def _expect(self, phase: JournalPhase) -> None:
        if self.phase is not phase:
            raise LedgerError(f"{self.spec.sequence_id} is {self.phase.value}, not {phase.value}")

    def _submission(self, replica: ReplicaId, now: float) -> SequenceSpec:
        """The next submission: a new id, the output so far, the remaining time."""
        self.attempts.sent()
        self._sent_at = now
        self._live_id = SequenceId(f"{self.spec.sequence_id}@{len(self._sent) + 1}")
        self._sent[self._live_id] = replica
        self.replica = replica
        known, time_left_s = tuple(self.output), self.deadline - now
        return self.spec.resumed(self._live_id, known, time_left_s, begun=self._first_delivered)

    def _send_adopt(self, replica: ReplicaId | None, now: float) -> Commands:
        assert self._ticket is not None, "handed off means that a ticket waits"
        replica = self._ticket.source if replica is None else replica
        self.phase = JournalPhase.MOVING
        return (Send(replica, Adopt(self._submission(replica, now), self._ticket)),)

    def _need_prefill(self, later: bool = False, lost: ReplicaId | None = None) -> NeedPrefill | NeedTrial:
        known = len(self.spec.prompt) + len(self.output)
        if self.attempts.on_trial:
            return NeedTrial(known, tuple(self.attempts.excluded), lost)
        return NeedPrefill(known, tuple(self.attempts.excluded), self.attempts.losses > 0, later)

    def _need_decode(self, ticket: HandoffTicket, later: bool = False) -> NeedDecode:
        return NeedDecode(ticket, tuple(self.attempts.excluded), self._at_source, self.attempts.losses > 0, later)

    def _is_at_source(self) -> bool:
        return self._ticket is not None and self._ticket.source == self.replica

    def _elsewhere(self, later: bool = False) -> Commands:
        """Route the sequence to another instance, with the blocks if the source still has them."""
        self.attempts.avoid(self.replica)
        if self.phase is JournalPhase.MOVING and self._ticket is not None:
            self.phase = JournalPhase.HANDED_OFF  # only the target changes
            return (self._need_decode(self._ticket, later),)
        self.phase = JournalPhase.ROUTING
        return (self._need_prefill(later),)

    def _left(self, replica: ReplicaId, *, again: bool) -> Commands:
        """Handle the loss of the live submission's instance; counts a failure, `again` as in `Attempts.failed`."""
        if self.phase is not JournalPhase.MOVING or self._ticket is None or self._is_at_source():
            return self._resubmit(FailKind.UNAVAILABLE, f"{replica} was lost", cancel=False, again=again)
        self._live_id = None
        if not self.attempts.failed(replica, again=again):
            return self.give_up(FailKind.UNAVAILABLE, self.attempts.spent(f"{replica} was lost"))
        return self._elsewhere()

    def _deliver(self, event: Tokens, end: FinishReason | None) -> Commands:
        """Record the new tokens of an event that leaves no gap.

        Args:
            end: finish reason to report to the client.
        Returns: a delivery, usually of the unchanged event.
        """
        known = len(self.output) - event.position
        new = event.tokens[known:] if known else event.tokens
        if not new and end is None:
            return ()
        self.output.extend(new)
        again, self._first_delivered = self._first_delivered, True
        once = again and (event.cached_tokens is not None or event.pool is not None or bool(event.prompt_logprobs))
        if known or once or end is not event.finish_reason:
            event = replace(
                event, position=event.position + known, tokens=new, logprobs=event.logprobs[known:], finish_reason=end
            )
        if once:
            event = replace(event, prompt_logprobs=(), cached_tokens=None, pool=None, waited_s=None)
        return (event,)

    def _resubmit(
        self, kind: FailKind, reason: str, *, cancel: bool, distrust: bool = False, again: bool = True
    ) -> Commands:
        """Abandon the live submission and resubmit prompt and output so far to another instance, or fail.

        Args:
            cancel: the instance still works on it and must receive a cancel.
            distrust: discard the blocks of a failed handoff.
            again: as in `Attempts.failed`.
        """
        commands = self._drop_ticket(distrust)
        if cancel and self._live_id is not None:
            commands += self._late(self._live_id)
        self._live_id = None
        if not self.attempts.failed(self.replica, again=again):
            self.phase = JournalPhase.DONE
            return (*commands, Fail(kind, self.attempts.spent(reason)))
        self.phase = JournalPhase.ROUTING
        return (*commands, self._need_prefill())

    def _drop_ticket(self, distrust: bool = False) -> Commands:
        ticket, self._ticket = self._ticket, None
        return () if ticket is None else (Send(ticket.source, Release(ticket.ticket_id, distrust)),)

    def _late(self, sequence_id: SequenceId) -> Commands:
        """Cancel a stale submission at its instance, once."""
        replica = self._sent.get(sequence_id)
        if replica is None or sequence_id in self._told_to_stop:
            return ()
        self._told_to_stop.add(sequence_id)
        return (Send(replica, Cancel(sequence_id)),)

    def _end(self) -> Commands:
        if self.done:
            return ()
        commands = self._drop_ticket()
        if self._live_id is not None and self.phase in AT_INSTANCE:
            commands += self._late(self._live_id)
        self._close()
        return commands

    def _close(self) -> None:
        if self._live_id is not None:
            self._told_to_stop.add(self._live_id)  # it has finished at the instance
        self._live_id = None
        self.phase = JournalPhase.DONE
