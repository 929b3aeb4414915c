"""One instance's engine: decides what to run and what to wait for, and never blocks.

Theory of operation. A driver, live or simulated, owns the engine from one thread. It reports every event with
`on(event, now)` and carries out the returned effects in order:

    NextStep ──► Run(plan) ──► executor ──► StepDone (or StepFailed)
             └─► PullOrder, FetchOrder, StoreOrder ──► movers ──► PullDone, FetchDone, StoreDone  (any time)
    Foresee ──► Foreseen(plan): the step after the running one; run after it: StepFollowed in place of StepDone
    Add, Adopt, Release, Cancel, Drain, MoveOut ──► events for gateways                           (any time, too)

While a step, a pull or a fetch runs, the blocks that it uses stay allocated: a sequence that ends in this time is
CLOSING and frees its blocks when the operation reports. The engine holds no clock, no thread and no tensor.
"""

from serving.errors import LedgerError, ServingError, UnavailableError
from serving.ids import BlockHash, BlockId, SequenceId
from serving.instance.core.audit import check_engine
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.draft_planner import DraftPlanner
from serving.instance.core.events import (
    Drain,
    EngineEffect,
    EngineEvent,
    FetchDone,
    Foresee,
    Foreseen,
    HandoffClosed,
    HandoffEnd,
    MoveOut,
    NextStep,
    PullDone,
    PullsNow,
    Run,
    StepDone,
    StepFailed,
    StepFollowed,
    StoreDone,
    WakeAt,
)
from serving.instance.core.finish import Accepted
from serving.instance.core.following import plan_following
from serving.instance.core.handoffs import (
    HeldHandoffs,
    ask_to_leave,
    hand_on_event,
    pull_order,
    ready_to_leave,
    ticket_of,
)
from serving.instance.core.intake import adoptable_hashes, check_adoption, check_room, check_spec, usable_drafts
from serving.instance.core.outcome import accepted_from, answered, book_step, continued, handoff_event, tokens_event
from serving.instance.core.pool_orders import PoolOrders
from serving.instance.core.scheduler import PlannedStep, Scheduler
from serving.instance.core.sequence import LiveSequence, PhaseEvent, SequencePhase, turn_of
from serving.instance.core.settings import EngineSettings
from serving.instance.core.snapshot import EngineCounters, take_snapshot
from serving.instance.core.speculation import Speculation
from serving.instance.core.timers import Timers
from serving.instance.core.windowed_blocks import make_blocks
from serving.values.instances import EngineSnapshot
from serving.values.news import Adopted, Lost, Tokens, refusal
from serving.values.orders import Add, Adopt, Cancel, Release
from serving.values.sequence import FinishReason, HandoffTicket, SequenceSpec
from serving.values.step_plan import SequenceResult, SequenceStep, StepResult
from serving.values.throughput import BusyThroughput


class InstanceEngine:
    """Schedules the sequences of one instance over `num_blocks` KV blocks."""

    def __init__(self, settings: EngineSettings, num_blocks: int) -> None:
        self.settings = settings
        self._blocks = make_blocks(settings, BlockPool(num_blocks))
        self.max_len = min(settings.max_model_len, self._blocks.max_tokens)
        """Longest prompt plus output: the setting, or the capacity of the whole KV arena if that is less."""
        self._drafts: DraftPlanner | None = None
        if settings.speculation or settings.forced_tokens or settings.lookup_tokens:
            speculation = Speculation(settings.draft_tokens) if settings.speculation else None
            most = settings.forced_tokens, settings.lookup_tokens
            self._drafts = DraftPlanner(speculation, self._blocks, self.max_len, *most)
        self.scheduler = Scheduler(settings.scheduler_limits, self._blocks, self._drafts)
        """Queues and block pool; other modules may read them, only the engine changes them."""
        self._handoffs = HeldHandoffs(settings.handoff_lease_s)
        self._timers = Timers(self._timer_is_live)
        self.sequences: dict[SequenceId, LiveSequence] = {}  # read-only for other modules
        self._out: list[EngineEffect] = []
        self._in_flight: PlannedStep | None = None
        self._foreseen: PlannedStep | None = None
        self._throughput = BusyThroughput()
        self._pool = PoolOrders(settings, self._blocks)
        self._counters = EngineCounters()
        self._holds = not settings.role.decodes
        self._arrivals = 0
        self._draining = False

    def on(self, event: EngineEvent, now: float) -> list[EngineEffect]:
        """Process an event.

        Returns: the effects to carry out, in this order. A sequence that can never run here, or for which there is no
            capacity, gives `Refused`, or `Lost` if only its handoff is wrong.
        Raises: LedgerError if the event is impossible, which is a bug in the driver.
        """
        if type(event) is StepDone:  # frequent events first, with the fast check: failing class patterns are slow
            self._take(self._land(now), event.result, now)
        elif type(event) is NextStep:
            self._turn(now)
        elif type(event) is StoreDone:
            self._note_work(now)
            self._pool.stored(event.order_id)
        elif type(event) is PullsNow:
            self._start_pulls(now)
        elif type(event) is Add:
            self._admit(event.spec, None, now)
        elif type(event) is Adopt:
            self._admit(event.spec, event.ticket, now)
        elif type(event) is Release:
            self._release(event, now)
        else:
            self._on_rarer(event, now)
        out, self._out = self._out, []
        return out

    def _on_rarer(self, event: EngineEvent, now: float) -> None:
        match event:
            case PullDone():
                self._pull_done(event, now)
            case FetchDone():
                self._fetch_done(event, now)
            case StepFollowed():
                self._step_followed(event.result, now)
            case Foresee():
                self._foresee(now)
            case Cancel():
                self._cancel(event.sequence_id, now)
            case StepFailed():
                self._step_failed(event.reason, now)
            case Drain():
                self._drain()
            case MoveOut():
                self._drain()
                self._note_work(now)
                self._out += ask_to_leave(self.sequences.values())

    # ---- queries -------------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether the engine has no sequences, including held ones."""
        return not self.sequences

    def snapshot(self, now: float) -> EngineSnapshot:
        """Statistics of the current state."""
        parts = self._counters, self.scheduler, self._handoffs, self._pool, self._throughput, self._drafts
        return take_snapshot(now, *parts, has_work=self._has_work(), draining=self._draining)

    def check(self) -> None:
        """Check that all ledgers balance; for tests and idle moments.

        Raises: LedgerError if they do not.
        """
        check_engine(self.sequences.values(), self.scheduler, self._handoffs, self._in_flight, self._pool.tables)

    # ---- commands ------------------------------------------------------------------------------------------------

    def _admit(self, spec: SequenceSpec, ticket: HandoffTicket | None, now: float) -> None:
        """Queue a sequence, or refuse it.

        Without a ticket its KV is computed here: for a new prompt, or for a resumed one with output so far. With a
        ticket, its prompt was computed by another instance: it waits in service order for free blocks, which is the
        back-pressure. A ticket of this engine is accepted in any role and while it drains: no other instance took
        it, and no block has to move.
        """
        try:
            check_spec(spec, self.max_len)
            if ticket is None:
                self._enqueue(spec, None, now)
                return
            holder = self._handoffs.find(ticket.ticket_id)
            check_adoption(holder, self.scheduler.waiting, self.settings.role)
            hashes = adoptable_hashes(spec, ticket, self.settings.block_tokens, self.settings.split)
            self._enqueue(spec, ticket, now, holder).learn_hashes(hashes)
        except ServingError as error:
            self._out.append(refusal(spec.sequence_id, error))

    def _enqueue(
        self, spec: SequenceSpec, ticket: HandoffTicket | None, now: float, holder: LiveSequence | None = None
    ) -> LiveSequence:
        scheduler = self.scheduler
        if self._draining and holder is None:
            raise UnavailableError("this instance is draining; send the request to another one")
        if spec.sequence_id in self.sequences:
            raise LedgerError(f"sequence {spec.sequence_id} is already here")
        if holder is None:
            check_room(scheduler, self.settings.max_waiting, self._throughput)
        self._note_work(now)
        self._arrivals += 1
        held = holder is not None
        turn = turn_of(spec, now, self._arrivals, self.settings.prompt_delay_s, held=held)
        sequence = LiveSequence(spec, turn, now, ticket)
        sequence.holder = holder
        self.sequences[spec.sequence_id] = sequence
        scheduler.waiting.enter(sequence)
        self._timers.set(sequence.deadline, spec.sequence_id, len(self.sequences))
        return sequence

    def _release(self, order: Release, now: float) -> None:
        """End a handoff; its blocks stay matchable until evicted, unless distrusted. An unknown ticket has expired."""
        sequence = self._handoffs.find(order.ticket_id)
        if sequence is None:
            return
        self._note_work(now)
        if order.distrust:
            self._blocks.distrust(sequence)
        self._end_handoff(sequence, HandoffEnd.RELEASED)

    def _cancel(self, sequence_id: SequenceId, now: float) -> None:
        """Drop a sequence in any state; no events follow. Unknown ids are ignored."""
        sequence = self.sequences.get(sequence_id)
        if sequence is not None and sequence.phase is not SequencePhase.CLOSING:
            self._note_work(now)
            self._drop(sequence, HandoffEnd.CANCELLED)

    def _drain(self) -> None:
        """Start draining: store the full blocks that the KV-cache pool has not received yet."""
        self._draining = True
        self._pool.hand_over()

    @property
    def storing_blocks(self) -> int:
        """Blocks that are being stored in the KV-cache pool."""
        return self._pool.pinned_blocks

    # ---- the step loop -------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        """Process deadlines and leases, departing streams and pulls, then the next step."""
        if self._in_flight is not None:
            raise LedgerError("a turn was requested while a step is in flight")
        self._note_work(now)
        for sequence_id in self._timers.due(now):
            self._time_is_up(self.sequences[sequence_id])
        for sequence in ready_to_leave(self.scheduler.running) if self._draining else ():
            self._hand_on(sequence, now)
        if self.scheduler.waiting.items:
            self._start_pulls(now)
        planned, waiting = None, -1
        while planned is None and waiting != len(self.scheduler.waiting.items):  # prompts may be after handoffs again
            planned, waiting = self.scheduler.plan_step(self._counters.planned, now), len(self.scheduler.waiting.items)
            if waiting:
                self._start_pulls(now)  # handoffs queued behind prompts
        if self.scheduler.to_fetch:
            self._out += map(self._pool.fetch_order, self.scheduler.take_fetches())
        self._out += self._pool.take_stores()
        self._in_flight = planned
        if planned is not None:
            self._counters.planned += 1
            self._out.append(Run(planned.plan))
        elif (wake_at := self._timers.next_at()) is not None:
            self._out.append(WakeAt(wake_at))

    def _start_pulls(self, now: float) -> None:
        """Reserve blocks for handoffs. If all blocks are cached here, adopt the sequence immediately without a pull."""
        for sequence in self.scheduler.start_pulls():
            order = pull_order(sequence, ticket_of(sequence), self._blocks)
            if order is None:
                self._adopted(sequence)
            else:
                self._out.append(order)

    def _foresee(self, now: float) -> None:
        """Plan the following step if it can be foreseen. Effects: grows block tables."""
        if self._in_flight is None:
            raise LedgerError("the next step was to be planned ahead while none was in flight")
        due = self._timers.next_at()
        if self._draining or (due is not None and due <= now):
            return
        self._foreseen = plan_following(self.scheduler, self._in_flight, self._counters.planned, self.max_len)
        if self._foreseen is not None:
            self._out.append(Foreseen(self._foreseen.plan))

    def _step_followed(self, result: StepResult, now: float) -> None:
        """Book a step while the next one runs: sequences that end are CLOSING until the next step has ended."""
        following = self._foreseen
        if following is None:
            raise LedgerError("a step was followed by one that was not planned ahead")
        landed = self._land(now)
        self._in_flight = following
        self._counters.planned += 1
        self._take(landed, result, now)
        self._out += self._pool.take_stores()

    def _step_failed(self, reason: str, now: float) -> None:
        """Drop the step's sequences and continue; the content of their blocks is not reused."""
        for sequence in self._land(now).sequences:
            sequence.in_flight = False
            if sequence.phase is not SequencePhase.CLOSING:
                self.scheduler.running.remove(sequence)
                self._out.append(Lost(sequence.sequence_id, reason))
            self._finish(sequence)

    def _land(self, now: float) -> PlannedStep:
        planned, self._in_flight, self._foreseen = self._in_flight, None, None
        if planned is None:
            raise LedgerError("a step finished while none was in flight")
        self._counters.progress_at = now
        return planned

    def _take(self, planned: PlannedStep, result: StepResult, now: float) -> None:
        """Book a finished step; its sequences may already be in the next one."""
        fed, following, before = 0, self._in_flight is not None, self._counters.step_tokens
        plain = not (self._drafts or self._holds or self._blocks.slides or result.masked)
        max_len, block_tokens = self.max_len, self.settings.block_tokens
        for sequence, step, outcome in answered(planned, result):
            if result.masked:
                sequence.note_masked(max(len(step.tokens), len(outcome.tokens)))
            fed += max(len(step.tokens), len(outcome.tokens))
            sequence.in_flight = following
            if plain and (tokens := continued(sequence, step, outcome, max_len, block_tokens)) is not None:
                self._out.append(tokens)
                self._counters.generated_tokens += len(tokens.tokens)
                if sequence.num_computed % block_tokens < len(step.tokens) + len(tokens.tokens) - 1:  # one is full now
                    self._note_full(sequence)
            elif sequence.phase is not SequencePhase.CLOSING:
                self._settle(sequence, step, outcome, now)
            elif not following:
                self._finish(sequence)
        self._counters.count_step(before)
        self._throughput.observe(fed, result.elapsed_s)
        if self._drafts is not None:
            self._drafts.end_step(planned.plan, result, planned.sequences)

    def _settle(self, sequence: LiveSequence, step: SequenceStep, outcome: SequenceResult, now: float) -> None:
        """Book one sequence's share of an executed step.

        Raises: LedgerError if a token was requested and the executor returned none.
        Effects: events; a sequence that ended, or whose prompt is done on a prefill instance, leaves the batch.
        """
        book_step(sequence, step, outcome)
        self._note_full(sequence)
        if sequence.phase is SequencePhase.PREFILLING:
            self._counters.prompt_tokens += len(step.tokens)
        accepted = accepted_from(sequence, step, outcome, self.max_len)
        if accepted is None:
            return
        self._counters.generated_tokens += len(accepted.tokens)
        drafts = None
        if self._drafts is not None and (self.settings.speculation or outcome.drafts or step.drafts):
            drafts = self._drafts.book(sequence, step, outcome, accepted)
        if accepted.finish_reason is None and self._holds and not sequence.stays:
            self._hold(sequence, accepted, outcome, now)
            return
        self._out.append(tokens_event(sequence, accepted, outcome, drafts))
        self._note_full(sequence)  # several tokens may have filled another block
        if accepted.finish_reason is not None:
            self._pool.claim(sequence)
            self._leave_batch(sequence)
        elif sequence.phase is SequencePhase.PREFILLING:
            sequence.advance(PhaseEvent.PROMPT_DONE)

    def _note_full(self, sequence: LiveSequence) -> None:
        if sequence.num_computed >= sequence.next_full:
            self._blocks.publish(sequence)
            self._pool.note_full(sequence)
            sequence.next_full = sequence.num_computed + self._blocks.until_full(sequence)
        if self._blocks.slides:
            self._blocks.slide(sequence)

    # ---- completed moves -----------------------------------------------------------------------------------------

    def _pull_done(self, event: PullDone, now: float) -> None:
        """End a pull: its sequence joins the batch at the next step, or is lost; if cancelled it only frees blocks."""
        sequence = self._known(event.sequence_id)
        self._note_work(now)
        if event.failure is None and sequence.phase is SequencePhase.PULLING:
            self._counters.handoff_bytes_in += event.moved_bytes
            self._counters.handoff_seconds += event.seconds
            self._adopted(sequence)
            return
        self.scheduler.drop_pull(sequence)
        if sequence.phase is SequencePhase.PULLING:
            self._counters.handoff_failures += 1
            self._out.append(Lost(event.sequence_id, event.failure or ""))
        self._finish(sequence)

    def _adopted(self, sequence: LiveSequence) -> None:
        """Continue with handed-off KV: pulled, cached, or taken over from the sequence that held it."""
        ticket = ticket_of(sequence)
        if sequence.holder is not None and sequence.holder.phase is SequencePhase.HELD:
            self._end_handoff(sequence.holder, HandoffEnd.RELEASED)
        sequence.holder = None
        sequence.num_computed = max(sequence.num_computed, ticket.computed_tokens)
        sequence.num_stored = sequence.num_computed // self.settings.block_tokens  # its prefill instance stored them
        if self._drafts is not None:
            settings = self.settings
            most = settings.draft_tokens if settings.speculation else settings.forced_tokens
            sequence.drafts = usable_drafts(sequence, ticket, most)
            sequence.drafts_forced = not settings.speculation
        self.scheduler.join(sequence)
        self._blocks.publish(sequence)
        self._counters.handoffs_in += 1
        self._out.append(Adopted(sequence.sequence_id, ticket.ticket_id))

    def _fetch_done(self, event: FetchDone, now: float) -> None:
        """End a fetch: the sequence computes the rest from the next step on; if cancelled, its blocks are freed."""
        sequence = self._known(event.sequence_id)
        self._note_work(now)
        self.scheduler.end_fetch(sequence, event.report.blocks)
        if sequence.phase is SequencePhase.CLOSING:
            self._finish(sequence)
            return
        self._pool.fetched(sequence, event.report)
        self._blocks.publish(sequence)

    def _known(self, sequence_id: SequenceId) -> LiveSequence:
        if (sequence := self.sequences.get(sequence_id)) is None:
            raise LedgerError(f"event for unknown sequence {sequence_id}")
        return sequence

    # ---- held sequences ------------------------------------------------------------------------------------------

    def _hold(self, sequence: LiveSequence, accepted: Accepted, outcome: SequenceResult, now: float) -> None:
        """Hold the blocks of a finished prefill for the pulling instance, and emit the first token."""
        sequence.advance(PhaseEvent.PROMPT_HELD)
        self._out.append(handoff_event(sequence, accepted, outcome, *self._keep(sequence, now)))

    def _hand_on(self, sequence: LiveSequence, now: float) -> None:
        sequence.advance(PhaseEvent.HAND_ON)
        self._out.append(hand_on_event(sequence, *self._keep(sequence, now)))

    def _keep(self, sequence: LiveSequence, now: float) -> tuple[str, tuple[BlockId, ...], tuple[BlockHash, ...]]:
        """Move a sequence from the batch to the held ones. Returns: its ticket, its blocks, and their hashes."""
        self.scheduler.running.remove(sequence)
        ticket_id = self._handoffs.hold(sequence, now)
        self._timers.set(self._handoffs.expires_at[ticket_id], sequence.sequence_id, len(self.sequences))
        return ticket_id, self._blocks.to_hand_over(sequence), self._blocks.full_hashes(sequence)

    def _end_handoff(self, sequence: LiveSequence, end: HandoffEnd) -> None:
        """End the ticket of a held sequence: finish it and have the driver withdraw its blocks."""
        ticket_id = self._handoffs.end(sequence)
        self._out.append(HandoffClosed(sequence.sequence_id, ticket_id, end))
        self._finish(sequence)

    # ---- departures ----------------------------------------------------------------------------------------------

    def _time_is_up(self, sequence: LiveSequence) -> None:
        """End a sequence whose deadline or lease has passed, with no step in flight. Effects: as `_drop`; an event."""
        if sequence.phase is SequencePhase.HELD:
            self._handoffs.expired_total += 1
            # For a gateway that has not received the ticket yet.
            self._out.append(Lost(sequence.sequence_id, "its handoff expired"))
            self._end_handoff(sequence, HandoffEnd.EXPIRED)
            return
        position, masked = len(sequence.output), sequence.take_masked()
        self._out.append(Tokens(sequence.sequence_id, position, finish_reason=FinishReason.DEADLINE, masked=masked))
        self._drop(sequence, HandoffEnd.EXPIRED)

    def _drop(self, sequence: LiveSequence, end: HandoffEnd) -> None:
        """Remove a sequence in any phase: it is finished, or closing until the operations on its blocks report."""
        phase, scheduler = sequence.phase, self.scheduler
        if phase is SequencePhase.HELD:
            self._end_handoff(sequence, end)
        elif phase in (SequencePhase.PULLING, SequencePhase.FETCHING):
            sequence.advance(PhaseEvent.CLOSE)
        elif phase in (SequencePhase.WAITING, SequencePhase.ADOPTING):
            scheduler.waiting.remove(sequence)
            self._finish(sequence)
        else:
            self._leave_batch(sequence)

    def _leave_batch(self, sequence: LiveSequence) -> None:
        """Remove a sequence from the batch. Effects: it is finished, or closing until its step ends."""
        self.scheduler.running.remove(sequence)
        if sequence.in_flight:
            sequence.advance(PhaseEvent.CLOSE)
        else:
            self._finish(sequence)

    def _finish(self, sequence: LiveSequence) -> None:
        sequence.advance(PhaseEvent.END)
        self._blocks.free(sequence)
        del self.sequences[sequence.sequence_id]

    # ---- internal ------------------------------------------------------------------------------------------------

    def _timer_is_live(self, sequence_id: SequenceId, at: float) -> bool:
        sequence = self.sequences.get(sequence_id)
        if sequence is None or sequence.phase is SequencePhase.CLOSING:
            return False
        return at == sequence.deadline or at == self._handoffs.expiry(sequence)

    def _has_work(self) -> bool:
        scheduler = self.scheduler
        if self._in_flight is not None or scheduler.running.items:
            return True
        # A queue that waits for other instances to release or deliver blocks does not count as stalled.
        others = self._handoffs.held or scheduler.pulling or scheduler.fetching or self._pool.pinned_blocks
        return bool(scheduler.waiting.items) and not others

    def _note_work(self, now: float) -> None:
        if not self.scheduler.running.items and not self._has_work():  # usually a batch exists
            self._counters.progress_at = now
