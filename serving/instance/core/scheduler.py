"""Forms the steps of one instance.

Theory of operation. Sequences are in one of four places: `waiting` (no blocks), `running` (blocks, computing),
`pulling` (blocks, being filled from another instance) and `fetching` (blocks, being filled from the KV-cache pool). A
step is formed in this order:

1. decodes, one token each, preempting from the end of the batch when blocks run out;
2. the next chunks of started prompts, which also preempt if a window frees blocks while sequences run;
3. new admissions from the queue, both prompts and pulls.

With a KV-cache pool, prompts are admitted ahead of the step that will feed them, so that their cached prefixes arrive
while the current step computes. Only the fetched prompt itself waits for its fetch: a prompt without one joins the next
step with capacity, even if earlier ones are still being fetched. A preempted sequence keeps its turn.
"""

from dataclasses import dataclass

from serving.errors import LedgerError
from serving.instance.core.admission import AdmissionRoom, admit_head
from serving.instance.core.decode_scheduler import plan_decodes
from serving.instance.core.draft_planner import DraftPlanner
from serving.instance.core.prefill_scheduler import plan_chunks
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.sequence_phase import PhaseEvent, SequencePhase
from serving.instance.core.sequence_queue import SequenceQueue
from serving.instance.core.step_budget import StepBudget
from serving.instance.core.waiting_queue import WaitingQueue
from serving.values.sequence import PoolUse
from serving.values.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of one instance's steps.

    Args:
        max_step_tokens: tokens fed by one step, decodes and chunks together.
        max_sequences: sequences computing or being pulled at one time.
        watermark_blocks: blocks that admission leaves free for the running batch.
        draft_tokens: tokens beyond the first that a step may add to a decoding sequence, drafted inside the executor;
            0 if a `DraftPlanner` puts draft tokens into plans.
        fetch_ahead_tokens: with a pool, prompts are admitted until this many tokens wait to be computed, a prompt that
            is being fetched counting at most one step's tokens; 0 = no pool.
    """

    max_step_tokens: int
    max_sequences: int
    watermark_blocks: int
    fetch_ahead_tokens: int = 0
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A plan and the records from which it was made, in the plan's order."""

    plan: StepPlan
    sequences: list[LiveSequence]


class Scheduler:
    """Queues of one instance and the rules that move sequences between them."""

    def __init__(self, limits: SchedulerLimits, blocks: SequenceBlocks, planner: DraftPlanner | None = None) -> None:
        """
        Args:
            planner: puts draft tokens into steps; None = no speculation.
        """
        self.limits = limits
        self.blocks = blocks
        self._planner = planner
        self.waiting = WaitingQueue()
        self.running = SequenceQueue()
        self.pulling: list[LiveSequence] = []
        self.fetching: list[LiveSequence] = []
        self.to_fetch: list[LiveSequence] = []
        """Sequences admitted to FETCHING since the last poll of the driver."""
        self.preemptions = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0

    def plan_step(self, step: int, now: float) -> PlannedStep | None:
        """Form the next step; None when no sequence can compute now.

        Args:
            now: engine time [s]; only recorded as each prompt's waiting time.
        Effects: admits, preempts, marks the planned sequences as in flight.
        """
        running = self.running.items
        if not running and not self.waiting.items:
            return None
        if self._planner is not None:
            self._planner.begin(running)
        budget = StepBudget(self.limits.max_step_tokens, self._planner, len(running))
        if running:
            plan_decodes(running, self.blocks, budget, self._preempt, self.limits.draft_tokens)
            plan_chunks(running, self.blocks, budget, self._preempt)
        # A victim of this step cannot be admitted again in it: it needs all the blocks that it freed, and at least one
        # of them is in use.
        ahead, fetch = self._room_ahead() if self.waiting.items else 0, True
        while self.waiting.items and (budget.tokens_left > 0 or ahead > 0):
            admitted = self._admit(SequencePhase.WAITING, now, fetch=fetch)
            if admitted is None:
                break
            ahead -= self._ahead(admitted)
            if admitted.phase is SequencePhase.PREFILLING and budget.tokens_left > 0:
                budget.feed(admitted)
            elif ahead <= 0:
                fetch = False
        if not budget.steps:
            return None
        return PlannedStep(StepPlan(step, tuple(budget.steps)), budget.sequences)

    def start_pulls(self) -> list[LiveSequence]:
        """Admit handoffs from the head of the queue. Allowed while a step runs, since only free blocks are taken.

        Returns: sequences that are now PULLING; their `num_computed` tokens were found here and need no pull.
        """
        started: list[LiveSequence] = []
        while (admitted := self._admit(SequencePhase.ADOPTING)) is not None:
            started.append(admitted)
        return started

    def take_fetches(self) -> list[LiveSequence]:
        """Sequences admitted to FETCHING since the last call. Effects: empties the list."""
        started, self.to_fetch = self.to_fetch, []
        return started

    def join(self, sequence: LiveSequence) -> None:
        """Put a pulled sequence into the batch; it takes part from the next step on.

        Raises: LedgerError if it was not pulling.
        """
        self.drop_pull(sequence)
        done = sequence.num_missing == 1
        sequence.advance(PhaseEvent.PULL_DONE if done else PhaseEvent.PULL_DONE_IN_PART)
        sequence.join()
        self.running.add(sequence)

    def end_fetch(self, sequence: LiveSequence, blocks: int) -> None:
        """End a fetch: the sequence continues with the fetched blocks, or closes if it was cancelled.

        Args:
            blocks: number of leading blocks that were filled.
        Raises: LedgerError if it was not being fetched.
        """
        if sequence not in self.fetching:
            raise LedgerError(f"sequence {sequence.sequence_id} is not being fetched")
        self.fetching.remove(sequence)
        if sequence.phase is SequencePhase.FETCHING:
            self.blocks.fetched(sequence, blocks)
            sequence.advance(PhaseEvent.FETCH_DONE)
            self.running.add(sequence)

    def drop_pull(self, sequence: LiveSequence) -> None:
        """Remove a sequence from the pulls.

        Raises: LedgerError if it was not pulling.
        """
        if sequence not in self.pulling:
            raise LedgerError(f"sequence {sequence.sequence_id} is not being pulled")
        self.pulling.remove(sequence)

    def may_admit(self) -> bool:
        """Whether the next step might admit a waiting sequence."""
        return bool(self.waiting.items) and self._busy() < self.limits.max_sequences

    @property
    def guesses(self) -> bool:
        """Whether any step may give a sequence several tokens, not counting grammar-forced ones."""
        speculates = self._planner is not None and self._planner.speculation is not None
        return speculates or self.limits.draft_tokens > 0

    def queued_tokens(self) -> int:
        """Tokens to compute until all known sequences have caught up."""
        known = [*self.waiting.items, *self.running.items, *self._fetched()]
        return sum([sequence.num_to_compute for sequence in known])

    def _busy(self) -> int:
        return len(self.running.items) + len(self.pulling) + len(self.fetching)

    def _room_ahead(self) -> int:
        """Tokens that may still be admitted ahead of their step; 0 without a pool."""
        if not self.limits.fetch_ahead_tokens:
            return 0
        prompts = sum([s.num_missing for s in self.running if s.phase is SequencePhase.PREFILLING])
        return self.limits.fetch_ahead_tokens - prompts - sum(map(self._ahead, self._fetched()))

    def _fetched(self) -> list[LiveSequence]:
        """Sequences being fetched that will compute; cancelled ones only wait for the end of the fetch."""
        return [sequence for sequence in self.fetching if sequence.phase is SequencePhase.FETCHING]

    def _ahead(self, sequence: LiveSequence) -> int:
        """Tokens of an admitted prompt that count as admitted ahead: while it is fetched, at most one step's."""
        if sequence.phase is SequencePhase.PREFILLING:
            return sequence.num_missing
        return min(sequence.num_missing, self.limits.max_step_tokens)

    def _admit(self, phase: SequencePhase, now: float | None = None, *, fetch: bool = True) -> LiveSequence | None:
        waiting = self.waiting.items
        if not waiting or waiting[0].phase is not phase:  # the head is never overtaken
            return None
        if not fetch and self.blocks.would_fetch(waiting[0]):
            return None
        busy = self._busy()
        keep_free = self.limits.watermark_blocks if busy else 0
        room = AdmissionRoom(self.limits.max_sequences - busy, keep_free)
        sequence = admit_head(self.waiting, self.blocks, room, phase)
        if sequence is None:
            return None
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.num_computed
            sequence.waited_s = None if now is None else now - sequence.came_s
            self.prefix_queries_tokens += len(sequence.tokens)
            self.prefix_hits_tokens += sequence.num_computed
        if phase is SequencePhase.ADOPTING:
            sequence.advance(PhaseEvent.PULL_START)
            self.pulling.append(sequence)
        elif self.limits.fetch_ahead_tokens and self.blocks.fetchable(sequence):
            sequence.advance(PhaseEvent.FETCH_START)
            self.fetching.append(sequence)
            self.to_fetch.append(sequence)
        else:
            if self.limits.fetch_ahead_tokens and sequence.pool_use is None:
                sequence.pool_use = PoolUse()
            sequence.advance(PhaseEvent.ADMIT)
            self.running.add(sequence)
        return sequence

    def _preempt(self, victim: LiveSequence) -> None:
        self.running.remove(victim)
        self.blocks.free(victim)
        victim.restart()
        victim.advance(PhaseEvent.PREEMPT)
        self.waiting.add(victim)
        self.preemptions += 1
