"""The scheduler's record of one sequence.

It does not separate prompt and output: `tokens` are known so far, and `num_computed` of them are in the KV cache, which
catches up in chunks while many are missing and one by one in decode. A preempted or resumed sequence is the same
case with more tokens to catch up.
"""

import math

from serving.ids import BlockHash, BlockId, SequenceId
from serving.instance.core.known_tokens import KnownTokens
from serving.instance.core.sequence_phase import PhaseEvent, SequencePhase, next_phase
from serving.instance.core.speculation import Acceptance
from serving.values.sequence import HandoffTicket, PoolUse, SequenceSpec, TokenLogprobs
from serving.values.step_plan import SampleOrder

Turn = tuple[float, int]
"""Order among sequences of equal priority, smallest first: engine time [s], then arrival number."""

Order = tuple[float, Turn]
"""Order among all sequences, smallest first: priority, then turn. With several keys this priority is 0; the request's
priority then only orders the turns within its key, see `SequenceQueue`.
"""


def turn_of(spec: SequenceSpec, now: float, arrival: int, delay_s: float, *, held: bool) -> Turn:
    """Turn of a sequence that arrives now, delayed in proportion to its prompt length.

    A short prompt thus overtakes a long one that arrived shortly before, but none starves. Resumed or handed-off
    sequences are not delayed, because their streams have already started. Sequences whose blocks are held here are
    first, because others may wait for those blocks.

    Args:
        delay_s: per 1,000 tokens of a prompt [s].
        held: its blocks are held in this engine. Then it also precedes all priorities, see `LiveSequence.order`.
    """
    if held:
        return (-math.inf, arrival)
    return (now if spec.output else now + delay_s * len(spec.prompt) / 1000, arrival)


class LiveSequence:
    """One sequence inside an engine. Mutable; owned by the scheduler's thread."""

    __slots__ = (
        "acceptance",
        "blocks",
        "cached_tokens",
        "came_s",
        "deadline",
        "drafts",
        "drafts_forced",
        "feeds_forced",
        "first_reported",
        "hashes",
        "holder",
        "in_flight",
        "leaving",
        "num_computed",
        "num_published",
        "num_slid",
        "num_stored",
        "order",
        "output",
        "phase",
        "pool_use",
        "preempted",
        "prompt_logprobs",
        "prompt_logprobs_wanted",
        "sample_order",
        "samples",
        "sequence_id",
        "spec",
        "stop_tokens",
        "ticket",
        "ticket_id",
        "tokens",
        "waited_s",
    )

    def __init__(self, spec: SequenceSpec, turn: Turn, now: float, ticket: HandoffTicket | None = None) -> None:
        """
        Args:
            turn: its position among equal priorities.
            now: engine time [s]; the deadline is relative to it.
            ticket: identifies the held KV blocks of an adopted sequence.
        """
        sampling = spec.sampling
        self.spec = spec
        self.sequence_id: SequenceId = spec.sequence_id
        # A sequence whose blocks are held here precedes all priorities: a sequence with priority may need those blocks.
        self.order: Order = (self._rank if math.isfinite(turn[0]) else -math.inf, turn)
        self.came_s = now
        self.deadline = now + spec.time_left_s
        self.phase = SequencePhase.WAITING if ticket is None else SequencePhase.ADOPTING
        self.output: list[int] = list(spec.output)
        self.tokens = KnownTokens(spec.prompt, self.output)
        """Prompt and output; append-only, read by running steps."""
        self.stop_tokens = frozenset(sampling.stop_token_ids)
        self.samples = sampling.max_tokens > 0
        """False: only the prompt is computed (for its log-probabilities)."""
        self.sample_order = SampleOrder(sampling, spec.prompt, self.output)
        self.blocks: list[BlockId] = []
        self.num_computed = 0
        """Leading tokens whose KV is in `blocks`."""
        self.hashes: list[BlockHash] = list(spec.prompt_hashes)
        """Prefix hashes of the leading full blocks, as far as they were needed."""
        self.num_published = 0
        """Leading blocks that no longer need publishing."""
        self.num_stored = 0  # leading blocks that no longer need storing in the KV-cache pool
        self.num_slid = 0  # leading rows of the table without their sliding blocks
        self.pool_use: PoolUse | None = None
        """The pool's result at the first admission; None without a pool or a lookup."""
        self.ticket = ticket
        self.ticket_id: str | None = None
        """The handoff that this sequence waits on while HELD."""
        self.holder: LiveSequence | None = None
        """The held sequence of the same engine with the blocks of `ticket`, which change hands without a copy."""
        self.leaving = False
        """Whether it is to be handed off as soon as it decodes, because the instance drains."""
        self.in_flight = False
        """Whether a running step reads and writes this sequence's blocks."""
        self.drafts: tuple[int, ...] = ()
        """Draft tokens after `tokens`, for the next step to verify."""
        self.drafts_forced = False
        """Whether its grammar forces them, instead of the draft layer drafting them."""
        self.feeds_forced = False
        """The same for the draft tokens in the last step."""
        self.acceptance: Acceptance | None = None
        """Acceptance of this sequence's draft tokens; None before the first."""
        self.cached_tokens: int | None = None
        """Tokens that were not computed at the first admission: matched here, and pulled from the pool."""
        self.waited_s: float | None = None
        """Engine time from its arrival to its first admission as a prompt."""
        self.preempted = 0
        """Preemptions since the last report."""
        # The prefill instance has already reported an adopted sequence's first token and the facts reported with it.
        self.first_reported = ticket is not None
        self.prompt_logprobs_wanted = None if ticket is not None else sampling.prompt_logprobs
        self.prompt_logprobs: list[TokenLogprobs] = []

    @property
    def num_missing(self) -> int:
        """Known tokens that are not in the KV cache yet."""
        return len(self.tokens) - self.num_computed

    @property
    def num_to_compute(self) -> int:
        """Known tokens that this engine still has to compute, without those that a handoff will bring."""
        brought = self.ticket.computed_tokens if self.ticket and self.phase is SequencePhase.ADOPTING else 0
        return len(self.tokens) - max(self.num_computed, brought)

    @property
    def stays(self) -> bool:
        """Whether it decodes here even on a prefill instance, by request or because it was handed off to it."""
        return self.spec.whole or self.ticket is not None

    def advance(self, event: PhaseEvent) -> None:
        """Apply an event of the phase table.

        Raises: LedgerError if the event is impossible in this phase.
        """
        self.phase = next_phase(self.phase, event)

    def join(self) -> None:
        """Order the sequence in the batch by its priority, regardless of the source of its blocks. Call it while it is
        in no queue.
        """
        self.order = (self._rank, self.order[1])

    @property
    def _rank(self) -> int:
        return 0 if self.spec.line else self.spec.priority

    def append(self, tokens: tuple[int, ...]) -> None:
        """Add sampled tokens. Effects: grows `output` and thereby `tokens`."""
        self.output.extend(tokens)

    def learn_hashes(self, hashes: tuple[BlockHash, ...]) -> None:
        """Append prefix hashes of the next blocks, computed by another party. Effects: extends `hashes`."""
        self.hashes.extend(hashes)

    def take_preempted(self) -> int:
        """Number of preemptions since the last call."""
        preempted, self.preempted = self.preempted, 0
        return preempted

    def restart(self) -> None:
        """Reset the computed state but keep the output, as for a preempted sequence.

        Effects: counts the preemption; the caller has released the blocks.
        """
        self.num_computed = 0
        self.num_published = 0
        self.num_slid = 0
        self.preempted += 1
        self.drafts = ()
        self.prompt_logprobs.clear()
