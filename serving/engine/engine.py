"""One instance's engine: says what to run and what to wait for, and never waits.

Theory of operation. A driver, live or simulated, owns the engine from one thread:

    next_action(now) ──► plan ──► executor ──► step_finished(result, now)   (or step_failed)
                    └──► pulls ─► transport ─► pull_finished(...)            (any time, several at once)
    foresee(now) ──► plan of the step after the running one; run behind it: step_followed in place of both
    add / adopt / release / cancel / drain / move_out                        (any time, during a step too)
    take_events() after each call that may have news

While a step, a pull or a fetch runs, the blocks that it touches stay where they are: whatever ends meanwhile is CLOSING
and gives its blocks back when that reports. The engine holds no clock, no thread and no tensor.
"""

from serving.engine.audit import check_engine
from serving.engine.booking import Booking
from serving.engine.departures import Departures
from serving.engine.events import EngineAction, EngineEvent, EngineSnapshot, HandoffEnd, PullOrder
from serving.engine.handing_on import ask_to_leave, ready_to_leave
from serving.engine.handoffs import HeldHandoffs, pull_order, ticket_of
from serving.engine.holding import Holding
from serving.engine.intake import adoptable_hashes, check_adoption, check_room, check_spec, usable_drafts
from serving.engine.outcome import answered
from serving.engine.pool_orders import PoolOrders
from serving.engine.settings import EngineSettings
from serving.engine.snapshot import EngineCounters, take_snapshot
from serving.engine.timers import Timers
from serving.errors import HandoffError, LedgerError, ServingError, UnavailableError
from serving.ids import SequenceId
from serving.policy.block_pool import BlockPool
from serving.policy.draft_planner import DraftPlanner
from serving.policy.following import plan_following
from serving.policy.pool.outcome import FetchReport
from serving.policy.scheduler import PlannedStep, Scheduler
from serving.policy.sequence import LiveSequence, turn_of
from serving.policy.sequence_blocks import SequenceBlocks
from serving.policy.sequence_phase import SequencePhase
from serving.policy.speculation import Speculation
from serving.policy.step_plan import StepPlan, StepResult
from serving.policy.throughput import Throughput
from serving.values.news import Adopted, Lost
from serving.values.sequence import HandoffTicket, SequenceSpec


class InstanceEngine:
    """Schedules the sequences of one prefill, decode or aggregated instance over `num_blocks` KV blocks."""

    def __init__(self, settings: EngineSettings, num_blocks: int) -> None:
        self.settings = settings
        self.max_len = min(settings.max_model_len, num_blocks * settings.block_tokens)
        """Longest prompt plus output: the setting, or what the whole KV arena holds if that is less."""
        pool = BlockPool(num_blocks)
        self._blocks = SequenceBlocks(
            pool, settings.block_tokens, prefix_reuse=settings.prefix_reuse, cache_decoded=settings.cache_decoded
        )
        self._drafts: DraftPlanner | None = None
        if settings.speculation:
            self._drafts = DraftPlanner(Speculation(settings.draft_tokens), self._blocks, self.max_len)
        self.scheduler = Scheduler(settings.scheduler_limits, self._blocks, self._drafts)
        """Queues and block pool, for whoever wants to look; only the engine changes them."""
        self._handoffs = HeldHandoffs(settings.handoff_lease_s)
        self._timers = Timers(self._timer_is_live)
        self.sequences: dict[SequenceId, LiveSequence] = {}  # for others to read, never to change
        self._events: list[EngineEvent] = []
        self._departures = Departures(self.scheduler, self._handoffs, self.sequences, self._events)
        self._holding = Holding(self.scheduler, self._handoffs, self._timers, self.sequences, self._events)
        self._in_flight: PlannedStep | None = None
        self._foreseen: PlannedStep | None = None
        self._throughput = Throughput()
        self._pool = PoolOrders(settings, self._blocks)
        self._counters = EngineCounters()
        parts = self._pool, self._drafts, self._counters, self._holding, self._departures, self._events
        self._booking = Booking(settings.role, self.max_len, self._blocks, *parts)
        self._arrivals = 0
        self._draining = False

    # ---- orders from outside -------------------------------------------------------------------------------------

    def add(self, spec: SequenceSpec, now: float) -> None:
        """Take a sequence whose KV is computed here: a new prompt, or a resumed one with output so far.

        Raises:
            InvalidRequestError, ContextLengthError: it can never run here.
            OverloadedError: the waiting queue is full.
            UnavailableError: the engine drains.
            LedgerError: the id is known already.
        Effects: queues it.
        """
        check_spec(spec, self.max_len)
        self._enqueue(spec, None, now)

    def adopt(self, spec: SequenceSpec, ticket: HandoffTicket, now: float) -> None:
        """Take a sequence whose prompt was computed elsewhere; `spec.output` holds the tokens so far.

        It waits, in service order, until there is room for it: holding the pull back is the back-pressure. A ticket of
        this very engine is taken in any role, and while it drains: nobody else was there, and no block need move.

        Raises: as `add`, and HandoffError if the ticket does not fit the sequence, is being taken back already, or is
            another engine's and this role takes no handoffs.
        Effects: queues it.
        """
        check_spec(spec, self.max_len)
        holder = self._handoffs.find(ticket.ticket_id)
        check_adoption(holder, self.scheduler.waiting, self.settings.role)
        hashes = adoptable_hashes(spec, ticket, self.settings.block_tokens)
        self._enqueue(spec, ticket, now, holder).learn_hashes(hashes)

    def release(self, ticket_id: str, now: float, *, distrust: bool = False) -> None:
        """The handoff was acknowledged, or given up. Unknown tickets are ignored: they have expired.

        Args:
            distrust: the blocks did not arrive as they were registered; recompute rather than reuse them.
        Effects: frees the held blocks, which stay matchable until evicted unless they are distrusted.
        """
        sequence = self._handoffs.find(ticket_id)
        if sequence is not None:
            self._note_work(now)
            if distrust:
                self._blocks.distrust(sequence)
            self._departures.end_handoff(sequence, HandoffEnd.RELEASED)

    def cancel(self, sequence_id: SequenceId, now: float) -> None:
        """Forget a sequence in whatever state it is; no event follows. Unknown ids are ignored.

        Effects: frees its blocks, at once or when the running step or pull lets go of them.
        """
        sequence = self.sequences.get(sequence_id)
        if sequence is not None and sequence.phase is not SequencePhase.CLOSING:
            self._note_work(now)
            self._departures.drop(sequence, HandoffEnd.CANCELLED)

    def drain(self) -> None:
        """Refuse new sequences from now on; those inside go on.

        Effects: full blocks that the KV-cache pool has not got, for want of time, are to be stored there.
        """
        self._draining = True
        self._pool.hand_over()

    def move_out(self, now: float) -> None:
        """As `drain`, and what is inside now is to go on elsewhere, if there is an elsewhere.

        Effects: at the next step boundary a `HandoffReady` for each stream; a `Leaving` for each prompt and
            each handoff that is not here yet.
        """
        self.drain()
        self._note_work(now)
        self._events += ask_to_leave(self.sequences.values())

    # ---- the step loop -------------------------------------------------------------------------------------------

    def next_action(self, now: float) -> EngineAction:
        """What to do now. Call between steps, after any news, and at `wake_at`.

        Raises: LedgerError while a plan is in flight.
        Effects: applies deadlines and leases; admits, preempts, starts pulls; a returned plan is in flight.
        """
        if self._in_flight is not None:
            raise LedgerError("next_action called while a step is in flight")
        self._note_work(now)
        for sequence_id in self._timers.due(now):
            self._departures.time_is_up(self.sequences[sequence_id])
        for sequence in ready_to_leave(self.scheduler.running) if self._draining else ():
            self._holding.hand_on(sequence, now)
        pulls = self.start_pulls(now) if self.scheduler.waiting.items else ()
        planned, waiting = None, -1
        while planned is None and waiting != len(self.scheduler.waiting.items):  # prompts may be behind handoffs again
            planned, waiting = self.scheduler.plan_step(self._counters.planned, now), len(self.scheduler.waiting.items)
            pulls += self.start_pulls(now) if waiting else ()  # handoffs queued behind prompts
        fetches = tuple(map(self._pool.fetch_order, self.scheduler.take_fetches())) if self.scheduler.to_fetch else ()
        self._in_flight, plan = planned, planned.plan if planned is not None else None
        self._counters.planned += plan is not None
        return EngineAction(pulls, plan, self._timers.next_at(), fetches, self._pool.take_stores())

    def start_pulls(self, now: float) -> tuple[PullOrder, ...]:
        """Pulls that can start now, even during a step. `next_action` includes them; calling this is optional.

        Effects: reserves blocks. A handoff whose blocks are all cached here is adopted at once, without a pull.
        """
        orders: list[PullOrder] = []
        for sequence in self.scheduler.start_pulls():
            order = pull_order(sequence, ticket_of(sequence), self.settings.block_tokens)
            if order is None:
                self._adopted(sequence, now)
            else:
                orders.append(order)
        return tuple(orders)

    def step_finished(self, result: StepResult, now: float) -> None:
        """Take the result of the plan in flight.

        Raises: LedgerError if it does not belong to that plan.
        Effects: events for all new tokens; finished and cancelled sequences give their blocks back.
        """
        self._take(self._land(now), result, now)

    def foresee(self, now: float) -> StepPlan | None:
        """The step after the one in flight, if all that is missing is the tokens that this one draws.

        A driver may run it right behind the one in flight, and say so with `step_followed`; or forget it.

        Returns: None where the next step may be another one; see `plan_following`.
        Raises: LedgerError if no plan is in flight.
        Effects: grows block tables.
        """
        if self._in_flight is None:
            raise LedgerError("foresee called while no step is in flight")
        due = self._timers.next_at()
        if self._draining or (due is not None and due <= now):
            return None
        self._foreseen = plan_following(self.scheduler, self._in_flight, self._counters.planned, self.max_len)
        return self._foreseen.plan if self._foreseen is not None else None

    def step_followed(self, result: StepResult, now: float) -> EngineAction:
        """Take the result of the plan in flight; the one that was foreseen runs since it ended.

        Returns: as `next_action`; no pulls and no fetches.
        Raises: LedgerError if nothing was foreseen, or the result does not belong to the plan.
        Effects: as `step_finished`, but what ends only closes, until the step that runs now has ended, too.
        """
        following = self._foreseen
        if following is None:
            raise LedgerError("a step was followed by one that nobody had foreseen")
        landed = self._land(now)
        self._in_flight = following
        self._counters.planned += 1
        self._take(landed, result, now)
        return EngineAction((), following.plan, self._timers.next_at(), (), self._pool.take_stores())

    def step_failed(self, error: ServingError, now: float) -> None:
        """The plan in flight could not be executed. Its sequences fail, the engine goes on.

        Raises: LedgerError if no plan is in flight.
        Effects: a `Lost` for each of its sequences; their blocks are free, their content is not reused.
        """
        for sequence in self._land(now).sequences:
            sequence.in_flight = False
            if sequence.phase is not SequencePhase.CLOSING:
                self.scheduler.running.remove(sequence)
                self._events.append(Lost(sequence.sequence_id, f"{type(error).__name__}: {error}"))
            self._departures.finish(sequence)

    def pull_finished(self, sequence_id: SequenceId, error: HandoffError | None, moved_bytes: int, now: float) -> None:
        """A pull ended, well or not.

        Raises: LedgerError if that sequence is not being pulled.
        Effects: `Adopted` and it joins the batch at the next step; or `Lost`, or silence if it was
            cancelled, and its blocks are free.
        """
        sequence = self._known(sequence_id)
        self._note_work(now)
        if error is None and sequence.phase is SequencePhase.PULLING:
            self._counters.handoff_bytes_in += moved_bytes
            self._adopted(sequence, now)
            return
        self.scheduler.drop_pull(sequence)
        if sequence.phase is SequencePhase.PULLING:
            reason = f"{type(error).__name__}: {error}"
            self._events.append(Lost(sequence_id, reason))
        self._departures.finish(sequence)

    def fetch_finished(self, sequence_id: SequenceId, report: FetchReport, now: float) -> None:
        """The KV-cache pool gave what it had of a prompt, which may be nothing.

        Raises: LedgerError if that sequence is not being fetched.
        Effects: the sequence computes the rest from the next step on; or, cancelled meanwhile, its blocks are free.
        """
        sequence = self._known(sequence_id)
        self._note_work(now)
        self.scheduler.end_fetch(sequence, report.blocks)
        if sequence.phase is SequencePhase.CLOSING:
            self._departures.finish(sequence)
            return
        self._pool.fetched(sequence, report)
        self._blocks.publish(sequence)

    def store_finished(self, order_id: int, now: float) -> None:
        """A store order was carried out, or given up.

        Raises: LedgerError if it is not known.
        Effects: its blocks are not pinned any more.
        """
        self._note_work(now)
        self._pool.stored(order_id)

    # ---- what is known -------------------------------------------------------------------------------------------

    def take_events(self) -> tuple[EngineEvent, ...]:
        """All news since the last call, in order. Effects: empties the list."""
        events = tuple(self._events)
        self._events.clear()
        return events

    def idle(self) -> bool:
        """True when no sequence is inside, held ones included."""
        return not self.sequences

    def snapshot(self, now: float) -> EngineSnapshot:
        """The state in numbers."""
        parts = self._counters, self.scheduler, self._handoffs, self._pool, self._throughput, self._drafts
        return take_snapshot(now, *parts, has_work=self._has_work(), draining=self._draining)

    def check(self) -> None:
        """Prove that all ledgers balance; for tests and idle moments.

        Raises: LedgerError if they do not.
        """
        check_engine(self.sequences.values(), self.scheduler, self._handoffs, self._in_flight, self._pool.tables)

    # ---- inside --------------------------------------------------------------------------------------------------

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
        scheduler.waiting.add(sequence)
        self._timers.set(sequence.deadline, spec.sequence_id, len(self.sequences))
        return sequence

    def _known(self, sequence_id: SequenceId) -> LiveSequence:
        if (sequence := self.sequences.get(sequence_id)) is None:
            raise LedgerError(f"news of unknown sequence {sequence_id}")
        return sequence

    def _land(self, now: float) -> PlannedStep:
        planned, self._in_flight, self._foreseen = self._in_flight, None, None
        if planned is None:
            raise LedgerError("a step ended while none was in flight")
        self._counters.progress_at = now
        return planned

    def _take(self, planned: PlannedStep, result: StepResult, now: float) -> None:
        """Book a step that has ended; its sequences may be in the next one already."""
        fed, following, before = 0, self._in_flight is not None, self._counters.step_tokens
        for sequence, step, outcome in answered(planned, result):
            fed += max(len(step.tokens), len(outcome.tokens))
            sequence.in_flight = following
            if sequence.phase is not SequencePhase.CLOSING:
                self._booking.settle(sequence, step, outcome, now)
            elif not following:
                self._departures.finish(sequence)
        self._counters.count_step(before)
        self._throughput.observe(fed, result.elapsed_s)
        if self._drafts is not None:
            self._drafts.measure(planned.plan, result)

    def _adopted(self, sequence: LiveSequence, now: float) -> None:
        """The handed-off KV is here: pulled, cached, or taken over from the sequence that held it."""
        ticket = ticket_of(sequence)
        if sequence.holder is not None and sequence.holder.phase is SequencePhase.HELD:
            self._departures.end_handoff(sequence.holder, HandoffEnd.RELEASED)
        sequence.holder = None
        sequence.num_computed = max(sequence.num_computed, ticket.computed_tokens)
        sequence.num_stored = sequence.num_computed // self.settings.block_tokens  # its prefill instance stored them
        if self._drafts is not None:
            sequence.drafts = usable_drafts(sequence, ticket, self.settings.draft_tokens)
        self.scheduler.join(sequence)
        self._blocks.publish(sequence)
        self._counters.handoffs_in += 1
        self._events.append(Adopted(sequence.sequence_id, ticket.ticket_id))

    def _timer_is_live(self, sequence_id: SequenceId, at: float) -> bool:
        sequence = self.sequences.get(sequence_id)
        if sequence is None or sequence.phase is SequencePhase.CLOSING:
            return False
        return at == sequence.deadline or at == self._handoffs.expiry(sequence)

    def _has_work(self) -> bool:
        scheduler = self.scheduler
        if self._in_flight is not None or scheduler.running.items:
            return True
        # A queue that waits for others to release or deliver blocks is not ours to move.
        others = self._handoffs.held or scheduler.pulling or scheduler.fetching or self._pool.pinned_blocks
        return bool(scheduler.waiting.items) and not others

    def _note_work(self, now: float) -> None:
        """Start the watchdog's clock when there was nothing to move before."""
        if not self.scheduler.running.items and not self._has_work():  # mostly there is a batch
            self._counters.progress_at = now
