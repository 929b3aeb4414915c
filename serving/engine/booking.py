"""Books what a step gave for one sequence, in all ledgers of an engine, and says what becomes of the sequence."""

from serving.engine.departures import Departures
from serving.engine.events import EngineEvent
from serving.engine.holding import Holding
from serving.engine.outcome import accepted_from, book_step, tokens_event
from serving.engine.pool_orders import PoolOrders
from serving.engine.settings import EngineRole
from serving.engine.snapshot import EngineCounters
from serving.policy.draft_planner import DraftPlanner
from serving.policy.sequence import LiveSequence
from serving.policy.sequence_blocks import SequenceBlocks
from serving.policy.sequence_phase import PhaseEvent, SequencePhase
from serving.policy.step_plan import SequenceResult, SequenceStep


class Booking:
    """Shares its parts with the engine."""

    def __init__(
        self,
        role: EngineRole,
        max_len: int,
        blocks: SequenceBlocks,
        pool: PoolOrders,
        drafts: DraftPlanner | None,
        counters: EngineCounters,
        holding: Holding,
        departures: Departures,
        events: list[EngineEvent],
    ) -> None:
        """
        Args:
            max_len: longest prompt plus output of the instance.
        """
        self._holds = role is EngineRole.PREFILL
        self._max_len = max_len
        self._blocks = blocks
        self._pool = pool
        self._drafts = drafts
        self._counters = counters
        self._holding = holding
        self._departures = departures
        self._events = events

    def settle(self, sequence: LiveSequence, step: SequenceStep, outcome: SequenceResult, now: float) -> None:
        """Book one sequence's share of a step that was executed.

        Raises: LedgerError if a token was ordered and the executor gave none.
        Effects: events; a sequence that ended, or whose prompt is done at a prefill instance, leaves the batch.
        """
        book_step(sequence, step, outcome)
        self._note_full(sequence)
        if sequence.phase is SequencePhase.PREFILLING:
            self._counters.prompt_tokens += len(step.tokens)
        accepted = accepted_from(sequence, step, outcome, self._max_len)
        if accepted is None:
            return
        self._counters.generated_tokens += len(accepted.tokens)
        drafts = self._drafts.book(sequence, step, outcome, accepted) if self._drafts is not None else None
        if accepted.finish_reason is None and self._holds and not sequence.stays:
            self._holding.hold(sequence, accepted, outcome, now)
            return
        self._events.append(tokens_event(sequence, accepted, outcome, drafts))
        if len(accepted.tokens) > 1:
            self._note_full(sequence)
        if accepted.finish_reason is not None:
            self._departures.leave_batch(sequence)
        elif sequence.phase is SequencePhase.PREFILLING:
            sequence.advance(PhaseEvent.PROMPT_DONE)

    def _note_full(self, sequence: LiveSequence) -> None:
        self._blocks.publish(sequence)
        self._pool.note_full(sequence)
