"""What one step computes, and what it gave: the value boundary between policy and executors.

A step is one forward pass over any mix of prompt chunks and single decode tokens. Executors see only this.
"""

from collections.abc import Sequence

from msgspec import Struct

from serving.ids import BlockId, SequenceId
from serving.policy.request import SamplingParams, TokenLogprobs


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
        tokens: token ids fed, at least one. One token of a running sequence = a decode; more, or prompt = a chunk.
        start: tokens of this sequence that are already in the KV cache.
        block_table: block ids covering positions `0 ... start + len(tokens) - 1`; may cover more.
        sample: what to draw from the last position; None for a chunk that is not the last.
        prompt_logprobs: report log-probabilities of fed prompt tokens with this many alternatives; for position
            p > 0 they come from position p - 1. Asked only with `start == 0` or contiguous chunks from 0.
    """

    sequence_id: SequenceId
    tokens: Sequence[int]
    start: int
    block_table: Sequence[BlockId]
    sample: SampleOrder | None
    prompt_logprobs: int | None = None
    next_prompt_token: int | None = None
    """The prompt token after this chunk, when there is one and prompt log-probabilities are asked."""


class StepPlan(Struct, frozen=True, gc=False):
    """One step of one instance."""

    step: int
    sequences: tuple[SequenceStep, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens fed by the whole step."""
        return sum(len(s.tokens) for s in self.sequences)


class SequenceResult(Struct, frozen=True, gc=False):
    """What a step gave for one sequence, in the plan's order.

    Args:
        tokens: new tokens: none for an unfinished chunk, one for a sampled position (more with speculation).
        logprobs: one entry per new token when asked, else empty.
        prompt_logprobs: entries for the prompt positions among `start + 1 ... start + len(tokens)`, else empty.
    """

    sequence_id: SequenceId
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class StepResult(Struct, frozen=True, gc=False):
    """What a step gave. `elapsed_s` is the real (or simulated) duration of the step."""

    step: int
    results: tuple[SequenceResult, ...]
    elapsed_s: float
