"""Plan and result of one step: the value boundary between policy and executors.

A step is one forward pass over any mix of prompt chunks and single decode tokens, including draft tokens after these.
Executors depend only on these values.

Speculation. After the last known token a step may feed `drafts`, draft tokens proposed at the end of the previous step.
The token sampled at each position is compared with the draft token there: drafts up to the first mismatch are accepted,
and the token sampled at the mismatch is one more output token. Each sample has its own random number, keyed by seed and
position, so the output equals that without drafts, greedy or sampled. Then the draft layer proposes the next drafts, or
a sequence's grammar does where it allows only one continuation.
"""

from collections.abc import Sequence

from msgspec import Struct

from serving.ids import BlockId, SequenceId
from serving.values.sequence import SamplingParams, TokenLogprobs

UNKNOWN = -1
"""Placeholder of a token that the previous step samples: the plan was made while that step ran."""


class SampleOrder(Struct, frozen=True, gc=False):
    """Sample one token from the last fed position of a sequence.

    `prompt` and `output` are the sequence's tokens so far, by reference (append-only, not to be stored):
    penalties need them. The new token has position `len(prompt) + len(output)`, which also keys its random number.
    """

    sampling: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]


class SequenceStep(Struct, frozen=True, gc=False):
    """One sequence's share of a step: feed `tokens` at positions `start ...`, write their KV, attend to all before.

    Args:
        tokens: token ids fed, at least one; never the end of the prompt together with output tokens. `UNKNOWN` = the
            token that the previous step samples for this sequence, which has the same index in that step's plan.
        start: tokens of this sequence that are already in the KV cache.
        block_table: block ids covering positions `0 ... start + len(tokens) - 1`; may cover more.
        sample: sampling at the last position; None for a chunk that is not the last.
        prompt_logprobs: report log-probabilities of fed prompt tokens with this many alternatives; for position
            p > 0 they are computed at position p - 1. Set only with `start == 0` or contiguous chunks from 0.
        next_prompt_token: the prompt token after this chunk, if there is one and it is needed for prompt
            log-probabilities or for the draft layer, whose row of a position depends on the token that follows.
        drafts: draft tokens, fed at the positions after `tokens`; only with `sample`, and covered by the block table.
        next_drafts: number of drafts for the next step; 0 = none, but the draft layer's cache is kept up to date with
            the model's; None = the draft layer is not run. The block table covers the positions of the drafts.
        alone: the tokens follow the prompt, and each attends by itself, regardless of their number. Prompt tokens
            attend as chunks, even a single one. Attention over latents has a form for each case (absorbed weights,
            plain heads), and the results differ in the last bits; since only a token's position in its sequence
            decides, steps may be split in any way, and sequences recomputed.
    """

    sequence_id: SequenceId
    tokens: Sequence[int]
    start: int
    block_table: Sequence[BlockId]
    sample: SampleOrder | None
    prompt_logprobs: int | None = None
    next_prompt_token: int | None = None
    drafts: Sequence[int] = ()
    next_drafts: int | None = None
    alone: bool = False


class StepPlan(Struct, frozen=True, gc=False):
    """One step of one instance."""

    step: int
    sequences: tuple[SequenceStep, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens fed by the whole step."""
        return sum(len(s.tokens) for s in self.sequences)


class SequenceResult(Struct, frozen=True, gc=False):
    """A step's result for one sequence, in the plan's order.

    Args:
        tokens: new tokens: none for an unfinished chunk, one for a sampled position, preceded by the accepted drafts.
        logprobs: one entry per new token if requested, otherwise empty.
        prompt_logprobs: entries for the prompt positions among `start + 1 ... start + len(tokens)`, otherwise empty.
        drafts: draft tokens after `tokens`, as many as requested, or fewer.
        forced: whether the grammar forces these drafts, instead of the draft layer proposing them.
        failure: why its grammar allowed no token at a position to be sampled; then there is no token.
    """

    sequence_id: SequenceId
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    drafts: tuple[int, ...] = ()
    failure: str = ""
    forced: bool = False


class StepResult(Struct, frozen=True, gc=False):
    """Result of a step. `elapsed_s` is the real (or simulated) duration of the step.

    Args:
        masked: experts that no rank held, so that gates chose others: the step's KV must not be reused for sequences
            that are to be exact.
    """

    step: int
    results: tuple[SequenceResult, ...]
    elapsed_s: float
    masked: int = 0

    @property
    def has_drafts(self) -> bool:
        """Whether the next step has drafts to verify."""
        return any([one.drafts for one in self.results])
