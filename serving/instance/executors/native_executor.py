"""Computes steps with the native library: a plan becomes a few flat arrays, one call does the rest.

Sampling features that the library lacks (penalties, biases, log-probabilities) run in `host_sampler.sample` on the
logits that it returns, with the same random numbers and rules. Imports torch only for a model in torch. Between steps
only grammar matchers are kept, which can be rebuilt from the outputs.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from serving.errors import EngineError, GroupError, ModelError
from serving.grammar.matcher import Matchers
from serving.instance.executors.masks import StepMasks
from serving.instance.executors.native_batch import NativeAnswer, NativeBatch
from serving.instance.executors.native_grammar import StepMatchers
from serving.instance.executors.prompt_logprobs import prompt_logprobs
from serving.model.host_sampler import Sampled, sample, token_logprobs
from serving.model.kv_arena import KvArena
from serving.model.native.image_model import ExpertShapes, ImageModel, logits_of
from serving.model.native.layout import Cache, Form, GrammarFunctions
from serving.model.native.library import Library, load
from serving.model.native.rank_group import EngineHandle
from serving.values.sequence import TokenLogprobs
from serving.values.step_plan import SequenceResult, SequenceStep, StepPlan, StepResult

if TYPE_CHECKING:
    from serving.model.kv_cache import KvCache
    from serving.model.model import Model
    from serving.model.native.bind import BoundModel

_DRAFT_POSITIONS = 8
"""Cache rows reserved for draft tokens beyond the model's context."""


class NativeExecutor:
    """A `StepExecutor` in which a step is one call into the native library.

    Args:
        model: on an image; or in torch, on the CPU, with panels as products.
        kv_cache: with tensors like the model, or without; of the model's dtype or int8; drafting needs one layer more
            than the model has.
        threads: threads that compute a step, including the calling one.
        max_rows: maximum number of tokens that a plan feeds, including draft tokens.
        expert_shapes: as for `BoundModel`.
        matchers: of sequences with a grammar; None = such a sequence fails.
        most_forced: maximum number of draft tokens per step where a grammar allows only one continuation.
    Raises: ModelError if there is no library, the model cannot be bound to it, or memory or threads are short.
    Effects: starts the other threads, which sleep between steps; they end with this object.
    """

    def __init__(
        self,
        model: "ImageModel | Model",
        kv_cache: "KvArena | KvCache",
        *,
        threads: int,
        max_rows: int,
        expert_shapes: ExpertShapes = (),
        matchers: Matchers | None = None,
        most_forced: int = 0,
    ) -> None:
        library = load()
        if library is None:
            raise ModelError("there is no native library here: use the torch executor")
        assert str(kv_cache.dtype) == str(model.dtype), "the KV cache has another dtype than the model"
        self.model = model
        self.kv_cache = kv_cache
        self._library = library
        self._matchers = matchers
        self._threads = threads
        self._bound = _bound(model, expert_shapes)
        context = model.config.max_position_embeddings + _DRAFT_POSITIONS
        if kv_cache.split is None:  # otherwise a sequence may be longer than its kept part
            context = min(context, kv_cache.num_blocks * kv_cache.block_tokens)
        self._engine = NativeEngine(library, self._bound, kv_cache, threads, max_rows, context)
        self._in_step = matchers is not None and bool(matchers.grammars.step_functions)
        if matchers is not None and self._in_step:
            self._engine.use_grammars(matchers.grammars.step_functions)
        self._make_batch = partial(NativeBatch, grammars=self._in_step, most_forced=most_forced)
        self._batch = self._make_batch()
        self._drawn: tuple[int, list[tuple[int, ...]]] = (-1, [])
        """Number of the last step, and the tokens that it sampled."""
        self._answer = NativeAnswer(model.config.vocab_size, model.config.hidden_size, Form(self._bound.struct.form))

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        Raises: EngineError if the plan cannot be computed (ids out of range, too many rows, logits that are not
            finite); discard the step then.
        Effects: writes the fed tokens' KV into the blocks of each block table.
        """
        return self._run(plan, None)

    def prepare(self, plan: StepPlan) -> Callable[[], StepResult] | None:
        """Fill a batch for the step after the running one, before its tokens are known.

        Returns: see `PreparingExecutor.prepare`; None if a sequence needs logits or hidden states.
        """
        batch = self._make_batch()
        batch.fill(plan.sequences, unknown=1)
        return None if batch.special else partial(self._run, plan, batch)

    def _run(self, plan: StepPlan, prepared: NativeBatch | None) -> StepResult:
        """Run a plan, prepared or not; the body of `execute`.

        Args:
            prepared: the plan, laid out for the tokens that the last step sampled.
        """
        begun = time.perf_counter()
        try:
            results = self._results(plan, prepared) if plan.sequences else ()
        except (EngineError, GroupError) as error:
            raise type(error)(f"step {plan.step} failed: {error}") from error
        except Exception as error:  # any error from torch or a malformed plan: the port raises typed errors only
            raise EngineError(f"step {plan.step} failed: {error!r}") from error
        return StepResult(plan.step, results, time.perf_counter() - begun)

    def _results(self, plan: StepPlan, prepared: NativeBatch | None) -> tuple[SequenceResult, ...]:
        steps, answer = plan.sequences, self._answer
        batch, drawn = prepared or self._batch, None
        if prepared is None:
            batch.fill(steps)
        else:
            last, drawn = self._drawn
            assert last == plan.step - 1, f"prepared to follow step {plan.step - 1}, called after step {last}"
            batch.put_tokens([own[0] if own else 0 for own in drawn])  # empty: its grammar has ended it
        answer.prepare(batch)
        grammars: StepMatchers | None = None
        if batch.grammar_of:
            grammars = self._step(steps, batch, drawn)
        else:
            self._engine.step(batch, answer)
        tokens, drafts = answer.tokens(), answer.drafts()
        self._drawn = plan.step, tokens
        if not batch.special and grammars is None:
            pairs = zip(steps, tokens, drafts, strict=True)
            return tuple([SequenceResult(step.sequence_id, own, (), (), guessed) for step, own, guessed in pairs])
        return self._completed(steps, batch, tokens, drafts, grammars)

    def _completed(
        self,
        steps: Sequence[SequenceStep],
        batch: NativeBatch,
        tokens: list[tuple[int, ...]],
        drafts: list[tuple[int, ...]],
        grammars: StepMatchers | None,
    ) -> tuple[SequenceResult, ...]:
        """Results of a step for which some samples are still missing. Effects: draws them."""
        masks = StepMasks(self._matchers, [steps[index] for index in batch.logits_of], self._answer.logits.shape[1])
        draws = self._draw(steps, batch.logits_of, masks)
        prompts = self._prompt_logprobs(steps, batch) if batch.hidden_of else {}
        for index, draw in draws.items():
            tokens[index] = (draw.token,)
        for index, guessed in self._guess(steps, draws):
            drafts[index] = guessed
        failures, forced = (grammars.failures, grammars.forced) if grammars is not None else ({}, ())
        logprobs = {index: (draw.logprobs,) for index, draw in draws.items() if draw.logprobs is not None}
        return tuple(
            SequenceResult(
                step.sequence_id,
                tokens[i],
                logprobs.get(i, ()),
                prompts.get(i, ()),
                drafts[i],
                failures.get(step.sequence_id) or masks.failures.get(step.sequence_id, ""),
                i in forced,
            )
            for i, step in enumerate(steps)
        )

    def _step(
        self, steps: Sequence[SequenceStep], batch: NativeBatch, drawn: Sequence[tuple[int, ...]] | None
    ) -> StepMatchers:
        """Compute a step with grammar masks. Args: as for `StepMatchers`."""
        assert self._matchers is not None
        grammars = StepMatchers(self._matchers, steps, batch, drawn)
        try:
            self._engine.step(batch, self._answer)
        except Exception:
            grammars.forget()
            raise
        grammars.drew(self._answer.tokens(), self._answer.drafts())
        return grammars

    def _draw(self, steps: Sequence[SequenceStep], wanted: Sequence[int], masks: StepMasks) -> dict[int, Sampled]:
        """Samples from the returned logits, by index in the plan; failed sequences are absent."""
        if not wanted:
            return {}
        orders = [order for index in wanted if (order := steps[index].sample) is not None]
        allowed = [masks.rows(steps[index])[0] for index in wanted]  # such sequences are fed no draft tokens
        drawn = zip(wanted, sample(self._answer.logits, orders, allowed), strict=True)
        return {index: draw for index, draw in drawn if steps[index].sequence_id not in masks.failures}

    def _prompt_logprobs(
        self, steps: Sequence[SequenceStep], batch: NativeBatch
    ) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Log-probabilities of prompt tokens, from the returned hidden states, by index in the plan."""
        found = {}
        first = 0
        for index in batch.hidden_of:
            rows = batch.rows_of[index]
            hidden = self._answer.hidden[first : first + rows]
            logits = partial(logits_of, self._library, self._bound.struct, threads=self._threads)
            found[index] = prompt_logprobs(steps[index], hidden, logits, token_logprobs)
            first += rows
        return found

    def _guess(self, steps: Sequence[SequenceStep], draws: dict[int, Sampled]) -> list[tuple[int, tuple[int, ...]]]:
        """Draft tokens for sequences whose token was sampled here: feeds their last row again with the new token.

        The row is computed to the same bits as before; only the draft layer's part is new.
        """
        wanted = [index for index in draws if steps[index].next_drafts is not None]
        if not wanted:
            return []
        self._batch.fill_last_rows([(steps[index], draws[index].token) for index in wanted])
        self._answer.prepare(self._batch)
        self._engine.step(self._batch, self._answer)
        return list(zip(wanted, self._answer.drafts(), strict=True))


# A cm_engine in Python: the native library's threads and scratch memory for the steps of one instance.


class NativeEngine(EngineHandle):
    """A cm_engine that takes steps: the library's threads and scratch memory."""

    def __init__(
        self,
        library: Library,
        bound: "ImageModel | BoundModel",
        cache: "KvArena | KvCache",
        threads: int,
        max_rows: int,
        context: int,
    ) -> None:
        super().__init__(library)
        self._kept = bound, cache
        struct = _bound_cache(cache)
        model, place = ctypes.byref(bound.struct), ctypes.byref(self.address)
        library.check(self.functions.cm_engine_new(model, ctypes.byref(struct), threads, max_rows, context, place))

    def use_grammars(self, functions: Sequence[int]) -> None:
        """Allow batches to have matchers from now on. Args: functions: addresses in the order of `GrammarFunctions`."""
        self.functions.cm_engine_use_grammars(self.address, ctypes.byref(GrammarFunctions(*functions)))

    def step(self, batch: NativeBatch, answer: NativeAnswer) -> None:
        """Compute one step; releases the GIL.

        Raises: EngineError with the library's message; GroupError if other ranks of a group caused it.
        Effects: fills the answer.
        """
        self.check(self.functions.cm_step(self.address, ctypes.byref(batch.struct), ctypes.byref(answer.struct)))


def _bound(model: "ImageModel | Model", expert_shapes: ExpertShapes) -> "ImageModel | BoundModel":
    if isinstance(model, ImageModel):
        return model
    from serving.model.native.bind import BoundModel

    return BoundModel(model, expert_shapes)


def _bound_cache(cache: "KvArena | KvCache") -> Cache:
    if isinstance(cache, KvArena):
        return cache.struct
    from serving.model.native.bind import bind_cache

    return bind_cache(cache)
