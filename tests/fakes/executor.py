"""A step executor whose "KV cache" is the token ids themselves, so that a wrong block gives a wrong token.

The next token is a checksum of all tokens that the sequence can see through its block table. `reference_output`
computes the same from the plain token list: an engine that mixes up one block, feeds a token twice or skips one
disagrees.
"""

from collections.abc import Callable, Collection, Sequence
from struct import pack
from zlib import crc32

from msgspec.structs import replace

from serving.errors import EngineError, ServingError
from serving.ids import BlockId
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec, TokenLogprobs
from serving.values.step_plan import UNKNOWN, SampleOrder, SequenceResult, SequenceStep, StepPlan, StepResult

VOCAB = 64
STOP_TOKEN = 7
"""Use it as a stop token to get sequences of random length."""


def fake_token(history: Sequence[int], sampling: SamplingParams, output_tokens: int) -> int:
    """The token after `history`: a function of all of it and the seed; `min_tokens` masks stop tokens.

    With `top_k = 1` a function of the last token, so that the output repeats.
    """
    history = history[-1:] if sampling.top_k == 1 else history
    token = crc32(pack(f"<{len(history)}I", *history), sampling.seed & 0xFFFFFFFF) % VOCAB
    while token in sampling.stop_token_ids and output_tokens < sampling.min_tokens:
        token = (token + 1) % VOCAB
    return token


def fake_logprob(history: Sequence[int], token: int) -> TokenLogprobs:
    """The log-probability of `token` after `history`."""
    return TokenLogprobs(token, -(crc32(pack(f"<{len(history)}I", *history), token) % 1000) / 100 - 0.01)


def reference_output(spec: SequenceSpec, max_len: int = 1 << 30) -> tuple[tuple[int, ...], FinishReason]:
    """Whole output of a sequence and its finish reason, without any engine."""
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
    """`StepExecutor` over an arena of token ids, -1 where no token was written.

    Its draft layer's rows have a separate arena: the row of a position holds the token at that position. It
    drafts the next sampled token, correctly in `guess_percent` of the cases.
    """

    def __init__(self, num_blocks: int, block_tokens: int, *, step_s: float = 0.001, token_s: float = 0.0001) -> None:
        """Args:
        step_s, token_s: reported duration of a step: fixed part, and part per fed token, draft tokens included [s].
        """
        self.block_tokens = block_tokens
        self.arena = [[-1] * block_tokens for _ in range(num_blocks)]
        self.draft_arena = [[-1] * block_tokens for _ in range(num_blocks)]
        self.step_s = step_s
        self.token_s = token_s
        self.guess_percent = 70
        self.whole_drafts = False
        """Guess only from a draft cache without gaps; true of sequences whose neighbours all speculate."""
        self.max_len = num_blocks * block_tokens
        """Limit of positions that may be fed."""
        self.steps = 0
        self.masked_steps: Collection[int] = ()
        """Numbers of the steps in which experts are masked."""
        self.fail_next: ServingError | None = None
        """Raised by the next step, after it has written."""
        self._last: StepResult | None = None

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
        rows = plan.num_tokens + sum(len(step.drafts) for step in plan.sequences)
        masked = 3 * (plan.step in self.masked_steps)
        self._last = StepResult(plan.step, results, self.step_s + self.token_s * rows, masked)
        return self._last

    def prepare(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Prepare a step, like `PreparingExecutor.prepare`; later changes of the engine have no effect on it."""
        outputs = [tuple(step.sample.output) for step in plan.sequences if step.sample is not None]
        if any(tuple(step.tokens) != (UNKNOWN,) for step in plan.sequences) or len(outputs) != len(plan.sequences):
            raise EngineError("only steps of single, unknown tokens are prepared")

        def run() -> StepResult:
            last = self._last
            if last is None or last.step != plan.step - 1:
                raise EngineError(f"step {plan.step} was prepared to follow another one")
            steps = []
            for step, output, drawn in zip(plan.sequences, outputs, last.results, strict=True):
                if drawn.sequence_id != step.sequence_id or step.sample is None:
                    raise EngineError(f"{step.sequence_id} stands at another place of the step before")
                order = SampleOrder(step.sample.sampling, step.sample.prompt, (*output, *drawn.tokens))
                steps.append(replace(step, tokens=drawn.tokens, sample=order))
            return self.execute(StepPlan(plan.step, tuple(steps)))

        return run

    def history(self, table: Sequence[BlockId], length: int) -> list[int]:
        """Tokens that a sequence sees at its first `length` positions."""
        return self._seen(self.arena, table, length)

    def _seen(self, arena: list[list[int]], table: Sequence[BlockId], length: int) -> list[int]:
        seen: list[int] = []
        for block in table[: -(-length // self.block_tokens)]:
            seen.extend(arena[block])
        return seen[:length]

    def _write(self, step: SequenceStep, written: dict[tuple[BlockId, int], str]) -> None:
        fed = [*step.tokens, *step.drafts]
        if not step.tokens or (step.start + len(fed)) > len(step.block_table) * self.block_tokens:
            raise EngineError(f"{step.sequence_id}: {len(fed)} tokens at {step.start} do not fit its blocks")
        if step.start + len(fed) > self.max_len:
            raise EngineError(f"{step.sequence_id}: {len(fed)} tokens at {step.start} pass the longest length")
        if step.drafts and step.sample is None:
            raise EngineError(f"{step.sequence_id}: guesses without a draw")
        for position, token in enumerate(fed, start=step.start):
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
        tokens: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprobs, ...] = ()
        if (order := step.sample) is not None:
            if seen != [*order.prompt, *order.output]:
                raise EngineError(f"{step.sequence_id}: the KV cache holds other tokens than the sequence")
            tokens = self._draw(step, order, end)
            if order.sampling.logprobs is not None:
                logprobs = tuple(
                    fake_logprob([*seen, *tokens[:at]], token) for at, token in enumerate(tokens)
                )  # fmt: skip
        drafts = self._guess(step, tokens)
        return SequenceResult(step.sequence_id, tokens, logprobs, tuple(prompt_logprobs), drafts)

    def _draw(self, step: SequenceStep, order: SampleOrder, end: int) -> tuple[int, ...]:
        """The correct draft tokens, read from the arena where they were fed, and one more."""
        tokens: list[int] = []
        for guess in (*step.drafts, None):
            seen = self.history(step.block_table, end + len(tokens))
            tokens.append(fake_token(seen, order.sampling, len(order.output) + len(tokens)))
            if tokens[-1] != guess:
                break
        return tuple(tokens)

    def _guess(self, step: SequenceStep, drawn: tuple[int, ...]) -> tuple[int, ...]:
        """Write the draft layer's rows of the positions whose next token is known, and draft from them."""
        if step.next_drafts is None:
            return ()
        following = [*step.tokens[1:], *drawn]
        if step.sample is None and step.next_prompt_token is not None:
            following.append(step.next_prompt_token)
        known, table = step.start + len(following), step.block_table
        history = self.history(table, known)
        for position in range(step.start, known):
            self._note(table, position, history[position])
        if step.sample is None or not step.next_drafts:
            return ()
        if self.whole_drafts and self._seen(self.draft_arena, table, known) != history:
            raise EngineError(f"{step.sequence_id}: the draft layer's cache has gaps")
        if known + step.next_drafts >= len(table) * self.block_tokens:
            raise EngineError(f"{step.sequence_id}: the next guesses will have no block")
        history.append(drawn[-1])
        guesses: list[int] = []
        for ahead in range(step.next_drafts):
            output = len(step.sample.output) + len(drawn) + ahead
            guesses.append(fake_token(history, step.sample.sampling, output))
            if crc32(pack(f"<{len(history)}I", *history)) % 100 >= self.guess_percent:
                guesses[-1] = (guesses[-1] + 1) % VOCAB
            history.append(guesses[-1])
            if ahead:
                self._note(table, known + ahead - 1, -3)  # the layer's own output stood in for the model's
        return tuple(guesses)

    def _note(self, table: Sequence[BlockId], position: int, token: int) -> None:
        self.draft_arena[table[position // self.block_tokens]][position % self.block_tokens] = token
