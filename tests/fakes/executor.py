"""A step executor whose "KV cache" is the token ids themselves, so that a wrong block gives a wrong token.

The next token is a checksum of everything that the sequence can see through its block table. `reference_output` says
the same from the plain token list: an engine that mixes up one block, feeds a token twice or skips one disagrees.
"""

from collections.abc import Sequence
from struct import pack
from zlib import crc32

from serving.errors import EngineError, ServingError
from serving.ids import BlockId
from serving.policy.request import FinishReason, SamplingParams, SequenceSpec, TokenLogprobs
from serving.policy.step_plan import SequenceResult, SequenceStep, StepPlan, StepResult

VOCAB = 64
STOP_TOKEN = 7
"""Give it as a stop token to get sequences of random length."""


def fake_token(history: Sequence[int], sampling: SamplingParams, output_tokens: int) -> int:
    """The token after `history`: a function of all of it and the seed; `min_tokens` masks stop tokens."""
    token = crc32(pack(f"<{len(history)}I", *history), sampling.seed & 0xFFFFFFFF) % VOCAB
    while token in sampling.stop_token_ids and output_tokens < sampling.min_tokens:
        token = (token + 1) % VOCAB
    return token


def fake_logprob(history: Sequence[int], token: int) -> TokenLogprobs:
    """The log-probability of `token` after `history`."""
    return TokenLogprobs(token, -(crc32(pack(f"<{len(history)}I", *history), token) % 1000) / 100 - 0.01)


def reference_output(spec: SequenceSpec, max_len: int = 1 << 30) -> tuple[tuple[int, ...], FinishReason]:
    """Whole output of a sequence and how it ends, without any engine."""
    tokens, output = [*spec.prompt, *spec.output], list(spec.output)
    sampling = spec.sampling
    while len(output) < sampling.max_tokens:
        token = fake_token(tokens, sampling, len(output))
        tokens.append(token)
        output.append(token)
        if token in sampling.stop_token_ids:
            return tuple(output), FinishReason.STOP
        if len(tokens) >= max_len:
            break
    return tuple(output), FinishReason.LENGTH


def reference_prompt_logprobs(prompt: Sequence[int]) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of prompt positions 1 ... ."""
    return tuple(fake_logprob(prompt[:p], prompt[p]) for p in range(1, len(prompt)))


class FakeExecutor:
    """`StepExecutor` over an arena of token ids, -1 where nothing was written."""

    def __init__(self, num_blocks: int, block_tokens: int, *, step_s: float = 0.001, token_s: float = 0.0001) -> None:
        """
        Args:
            step_s, token_s: reported duration of a step: fixed part, and part per fed token [s].
        """
        self.block_tokens = block_tokens
        self.arena = [[-1] * block_tokens for _ in range(num_blocks)]
        self.step_s = step_s
        self.token_s = token_s
        self.steps = 0
        self.fail_next: ServingError | None = None
        """Raised by the next step, after it has written."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step over the arena.

        Raises: what `fail_next` holds, once; EngineError for a plan that no executor could run.
        """
        self.steps += 1
        written: dict[tuple[BlockId, int], str] = {}
        for step in plan.sequences:
            self._write(step, written)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        results = tuple(self._answer(step) for step in plan.sequences)
        return StepResult(plan.step, results, self.step_s + self.token_s * plan.num_tokens)

    def history(self, table: Sequence[BlockId], length: int) -> list[int]:
        """What a sequence sees at its first `length` positions."""
        seen: list[int] = []
        for block in table[: -(-length // self.block_tokens)]:
            seen.extend(self.arena[block])
        return seen[:length]

    def _write(self, step: SequenceStep, written: dict[tuple[BlockId, int], str]) -> None:
        if not step.tokens or (step.start + len(step.tokens)) > len(step.block_table) * self.block_tokens:
            raise EngineError(f"{step.sequence_id}: {len(step.tokens)} tokens at {step.start} do not fit its blocks")
        for position, token in enumerate(step.tokens, start=step.start):
            block, slot = step.block_table[position // self.block_tokens], position % self.block_tokens
            if (block, slot) in written:
                raise EngineError(f"{step.sequence_id} and {written[block, slot]} write the same slot of block {block}")
            written[block, slot] = step.sequence_id
            self.arena[block][slot] = token

    def _answer(self, step: SequenceStep) -> SequenceResult:
        end = step.start + len(step.tokens)
        seen = self.history(step.block_table, end)
        if -1 in seen:
            raise EngineError(f"{step.sequence_id} reads KV that was never written")
        prompt_logprobs: list[TokenLogprobs] = []
        if step.prompt_logprobs is not None:
            prompt_logprobs = [fake_logprob(seen[:p], seen[p]) for p in range(step.start + 1, end)]
            if step.next_prompt_token is not None:
                prompt_logprobs.append(fake_logprob(seen, step.next_prompt_token))
        if step.sample is None:
            return SequenceResult(step.sequence_id, prompt_logprobs=tuple(prompt_logprobs))
        order = step.sample
        if seen != [*order.prompt, *order.output]:
            raise EngineError(f"{step.sequence_id}: the KV cache holds other tokens than the sequence")
        token = fake_token(seen, order.sampling, len(order.output))
        logprobs = () if order.sampling.logprobs is None else (fake_logprob(seen, token),)
        return SequenceResult(step.sequence_id, (token,), logprobs, tuple(prompt_logprobs))
