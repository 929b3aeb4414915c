"""Plan and result of one step: the value boundary between policy and executors.

A step is one forward pass over any mix of prompt chunks and single decode tokens, guessed ones behind them included.
Executors see only this.

Speculation. Behind the last known token a step may feed `drafts`, guesses made at the end of the step before. The draw
at each position is compared with the guess that stands there: all guesses up to the first miss are right, and the draw
at that place is one more token. Each draw has its own random number, keyed by seed and position, so tokens are the very
same as without guesses, greedy or sampled. Then the draft layer guesses what follows, or a sequence's grammar does,
where it leaves one way on.
"""

from collections.abc import Sequence

from msgspec import Struct

from serving.ids import BlockId, SequenceId
from serving.values.sequence import SamplingParams, TokenLogprobs

UNKNOWN = -1
"""In place of a token that the step before this one draws: the plan was made while that one ran."""


class SampleOrder(Struct, frozen=True, gc=False):
    """Sample one token from the last fed position of a sequence.

    `prompt` and `output` are the sequence's tokens so far, by reference (append-only, not to be kept):
    penalties need them. The new token stands at position `len(prompt) + len(output)`, which also keys its
    random number.
    """

    sampling: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]


class SequenceStep(Struct, frozen=True, gc=False):
    """One sequence's share of a step: feed `tokens` at positions `start ...`, write their KV, attend to all before.

    Args:
        tokens: token ids fed, at least one; never the end of the prompt and what follows it together. `UNKNOWN` = what
            the step before drew for this sequence, which stands at the same place of its plan.
        start: tokens of this sequence that are already in the KV cache.
        block_table: block ids covering positions `0 ... start + len(tokens) - 1`; may cover more.
        sample: what to draw from the last position; None for a chunk that is not the last.
        prompt_logprobs: report log-probabilities of fed prompt tokens with this many alternatives; for position
            p > 0 they come from position p - 1. Asked only with `start == 0` or contiguous chunks from 0.
        next_prompt_token: the prompt token after this chunk, when there is one and somebody needs it: prompt
            log-probabilities, or the draft layer, whose row of a position depends on the token that follows.
        drafts: guesses, fed at the positions behind `tokens`; only with `sample`, and covered by the block table.
        next_drafts: guesses wanted for the next step; 0 = none, but the draft layer's cache is kept up with the
            model's; None = the draft layer takes no part. The block table covers the positions that they will have.
        alone: the tokens follow the prompt: each attends by itself, however many there are. The prompt's attend as
            chunks, however few. Attention over latents has a form for each (absorbed weights, plain heads), and they
            differ in last bits; since a token's place in its sequence decides, steps may be cut in any way, and
            sequences be computed again.
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
        tokens: new tokens: none for an unfinished chunk, one for a sampled position, and before it the drafts that
            were right.
        logprobs: one entry per new token when asked, else empty.
        prompt_logprobs: entries for the prompt positions among `start + 1 ... start + len(tokens)`, else empty.
        drafts: guesses of what follows `tokens`, as many as were wanted, or fewer.
        forced: these are what its grammar forces, not the draft layer's.
        failure: why its grammar gave no token where one was to be drawn; then there is none.
    """

    sequence_id: SequenceId
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    drafts: tuple[int, ...] = ()
    failure: str = ""
    forced: bool = False


class StepResult(Struct, frozen=True, gc=False):
    """Result of a step. `elapsed_s` is the real (or simulated) duration of the step."""

    step: int
    results: tuple[SequenceResult, ...]
    elapsed_s: float

    @property
    def has_guesses(self) -> bool:
        """Whether there is something to verify in the next step."""
        return any([one.drafts for one in self.results])
