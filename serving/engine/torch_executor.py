"""Computes steps for real: one forward pass over a step plan, then sampling."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from serving.engine.step_batch import StepBatch, build_step_batch
from serving.errors import EngineError
from serving.model.kv_cache import KvCache
from serving.model.model import DeepseekModel
from serving.model.sampler import Sampled, sample, token_logprobs
from serving.policy.request import TokenLogprobs
from serving.policy.step_plan import SequenceResult, SequenceStep, StepPlan, StepResult

# Rows of prompt log-probabilities computed at once: bounds a [rows, vocab] float32 tensor.
_LOGPROB_ROWS = 256


class TorchExecutor:
    """A `StepExecutor` over torch operators, on CPU or CUDA.

    Holds the model and the KV arena and nothing about sequences. Tokens of all sequences go through norms, products
    and experts together; only attention looks at sequences one by one.

    Args:
        kv_cache: on the model's device, of the model's dtype, at least as many layers as the model.
    """

    def __init__(self, model: DeepseekModel, kv_cache: KvCache) -> None:
        assert kv_cache.device == model.device, "the KV cache lies on another device than the model"
        assert kv_cache.dtype == model.dtype, "the KV cache has another dtype than the model"
        self.model = model
        self.kv_cache = kv_cache

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        Raises: EngineError if the pass fails (out of memory, a device error, ids out of range); discard the step then.
        Effects: writes the fed tokens' KV into the blocks of each block table.
        """
        begun = time.perf_counter()
        try:
            with torch.inference_mode():
                results = self._results(plan) if plan.sequences else ()
        except Exception as error:  # whatever torch raises: the port promises typed errors only
            raise EngineError(f"step {plan.step} failed: {error}") from error
        return StepResult(plan.step, results, time.perf_counter() - begun)

    def _results(self, plan: StepPlan) -> tuple[SequenceResult, ...]:
        batch = build_step_batch(plan, self.kv_cache, self.model.config.num_attention_heads)
        hidden = self.model.forward(batch.forward, self.kv_cache)
        sampled = self._sample(plan.sequences, batch, hidden)
        results = []
        for index, step in enumerate(plan.sequences):
            prompt = self._prompt_logprobs(step, batch.first_rows[index], hidden)
            draw = sampled.get(index)
            if draw is None:
                results.append(SequenceResult(step.sequence_id, prompt_logprobs=prompt))
                continue
            logprobs = () if draw.logprobs is None else (draw.logprobs,)
            results.append(SequenceResult(step.sequence_id, (draw.token,), logprobs, prompt))
        return tuple(results)

    def _sample(self, steps: Sequence[SequenceStep], batch: StepBatch, hidden: Tensor) -> dict[int, Sampled]:
        """One draw for each sequence that asks, by index in the plan."""
        wanted = [(i, step.sample) for i, step in enumerate(steps) if step.sample is not None]
        if not wanted:
            return {}
        rows = [batch.first_rows[i] + len(steps[i].tokens) - 1 for i, _ in wanted]
        logits = self.model.logits(hidden.index_select(0, torch.tensor(rows, device=hidden.device)))
        draws = sample(logits, [order for _, order in wanted])
        return {i: draw for (i, _), draw in zip(wanted, draws, strict=True)}

    def _prompt_logprobs(self, step: SequenceStep, first: int, hidden: Tensor) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the prompt tokens that follow each fed token."""
        if step.prompt_logprobs is None:
            return ()
        targets = [*step.tokens[1:]]
        if step.next_prompt_token is not None:
            targets.append(step.next_prompt_token)
        found: list[TokenLogprobs] = []
        for begin in range(0, len(targets), _LOGPROB_ROWS):
            part = targets[begin : begin + _LOGPROB_ROWS]
            rows = hidden[first + begin : first + begin + len(part)]
            found += token_logprobs(self.model.logits(rows), part, step.prompt_logprobs)
        return tuple(found)
