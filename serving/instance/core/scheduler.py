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

from collections.abc import Callable
from dataclasses import dataclass

from serving.errors import LedgerError
from serving.instance.core.draft_planner import DraftPlanner
from serving.instance.core.sequence import LiveSequence, PhaseEvent, SequencePhase
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.waiting_queue import AdmissionRoom, SequenceQueue, WaitingQueue, admit_head
from serving.values.sequence import PoolUse
from serving.values.step_plan import SequenceStep, StepPlan


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

    def may_draft(self) -> bool:
        """Whether the step after the running one may give a sequence several tokens, not counting forced ones."""
        drafts = self._planner is not None and self._planner.may_draft(self.running.items)
        return drafts or self.limits.draft_tokens > 0

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
            self.prefix_queries_tokens += sequence.num_known
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


# Temporary accumulator for one step: the remaining budget and what is planned so far.


class StepBudget:
    """Token budget of the step being formed."""

    __slots__ = ("_planner", "_speculates", "_unserved", "sequences", "steps", "tokens_left")

    def __init__(self, tokens: int, planner: DraftPlanner | None = None, running: int = 0) -> None:
        """
        Args:
            tokens: maximum number of tokens that the step may feed, including draft tokens.
            planner: puts draft tokens into the step; None = no speculation.
            running: sequences in the batch: draft tokens leave a token and a free block for each that is still to be
                fed.
        """
        self.tokens_left = tokens
        self._planner = planner
        self._speculates = planner is not None and planner.speculation is not None
        self._unserved = running
        self.sequences: list[LiveSequence] = []
        self.steps: list[SequenceStep] = []

    def feed_next(self, sequence: LiveSequence) -> None:
        """Plan the latest token of a decoding sequence. Effects: as `feed`, which does the same, only slower."""
        output, start = sequence.output, sequence.num_computed
        if self._planner is not None or start != sequence.prompt_tokens + len(output) - 1 or not output:
            self.feed(sequence)
            return
        self.tokens_left -= 1
        self._unserved -= 1
        order, name = sequence.sample_order, sequence.sequence_id
        self.steps.append(SequenceStep(name, output[-1:], start, sequence.blocks, order, None, None, (), None, True))
        self.sequences.append(sequence)
        sequence.in_flight = True

    def feed(self, sequence: LiveSequence) -> None:
        """Plan as many missing tokens of `sequence` as fit, and its sampling and draft tokens if they are the last.

        Effects: takes from the budget, marks the sequence as in flight; as `DraftPlanner.share`.
        """
        tokens, start = sequence.tokens, sequence.num_computed
        known, prompt_tokens = sequence.num_known, sequence.prompt_tokens
        alone = start >= prompt_tokens
        end = min(known if alone else prompt_tokens, start + self.tokens_left)
        wanted, following = sequence.prompt_logprobs_wanted, None
        if wanted is not None:
            if alone:
                wanted = None
            elif end < prompt_tokens:
                following = tokens[end]
        sample = sequence.sample_order if end == known and sequence.samples else None
        self.tokens_left -= end - start
        name, fed, blocks = sequence.sequence_id, tokens.span(start, end), sequence.blocks
        if self._planner is None or not (self._speculates or sequence.drafts):
            self._unserved -= 1
            self.steps.append(SequenceStep(name, fed, start, blocks, sample, wanted, following, alone=alone))
        else:
            self._unserved = spare = max(0, self._unserved - 1)
            share = self._planner.share(
                sequence, samples=sample is not None, spare_tokens=self.tokens_left - spare, spare_blocks=spare
            )
            if end < known and share.next_drafts is not None:
                following = tokens[end]
            self.tokens_left -= len(share.drafts)
            self.steps.append(SequenceStep(name, fed, start, blocks, sample, wanted, following, *share, alone))
        self.sequences.append(sequence)
        sequence.in_flight = True


# Continuous batching: every decoding sequence gets its next token in every step, as long as there are free blocks.
#
# Otherwise the last sequence in service order (possibly the requesting one) is preempted: it frees its blocks and
# restarts later. Because the batch is processed in service order, a victim is never already part of this step.


def plan_decodes(
    running: list[LiveSequence],
    blocks: SequenceBlocks,
    budget: StepBudget,
    preempt: Callable[[LiveSequence], None],
    draft_tokens: int = 0,
) -> None:
    """Plan one step for each decoding sequence.

    Args:
        running: all sequences in the batch, in service order.
        preempt: takes a sequence out of `running` and frees its blocks.
        draft_tokens: tokens beyond the first that the step may add to a sequence; its blocks cover them, unless it
            fills the whole arena.
    Effects: fills `budget`; may shorten `running` from its end.
    """
    block_tokens, width, most = blocks.block_tokens, blocks.width, blocks.max_tokens
    decoding, index = SequencePhase.DECODING, 0
    while index < len(running) and budget.tokens_left > 0:
        sequence = running[index]
        index += 1
        if sequence.phase is not decoding:
            continue
        upto = sequence.prompt_tokens + len(sequence.output) + draft_tokens
        if upto > most:
            upto = most
        if upto * width <= len(sequence.blocks) * block_tokens or make_room(sequence, upto, running, blocks, preempt):
            budget.feed_next(sequence)


def make_room(
    sequence: LiveSequence,
    tokens: int,
    running: list[LiveSequence],
    blocks: SequenceBlocks,
    preempt: Callable[[LiveSequence], None],
) -> bool:
    """Grow the block table of a sequence that is not in the step yet, preempting from the end of the batch sequences
    that are not in it either. Returns: False if the sequence itself was preempted.
    """
    while not blocks.grow(sequence, tokens):
        victim = next(one for one in reversed(running) if not one.in_flight)
        preempt(victim)
        if victim is sequence:
            return False
    return True


# Chunked prefill: prompts share the part of the step's token budget that decodes leave, in service order.
#
# A prompt longer than the rest of the budget is cut; its next chunk is in the next step. All blocks of a prompt are
# reserved when it is admitted, so a started prompt never waits for blocks; but if a window frees some of them, each
# chunk allocates its blocks, as decodes do.


def plan_chunks(
    running: list[LiveSequence],
    blocks: SequenceBlocks,
    budget: StepBudget,
    preempt: Callable[[LiveSequence], None],
) -> None:
    """Plan the next chunk of each admitted prompt while budget is left.

    Args:
        running: all sequences in the batch, in service order.
        preempt: as for `plan_decodes`.
    Effects: fills `budget`; may shorten `running` from its end if a window frees blocks while sequences run.
    """
    for sequence in running:
        if budget.tokens_left <= 0:
            return
        if sequence.phase is not SequencePhase.PREFILLING:
            continue
        if blocks.slides:
            upto = sequence.num_computed + min(sequence.num_missing, budget.tokens_left)
            if not make_room(sequence, upto, running, blocks, preempt):
                continue
        budget.feed(sequence)
