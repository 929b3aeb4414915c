"""The native executor and the torch one, on the same checkpoint and the same plans."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from serving.ids import BlockId, SequenceId
from serving.instance.executors.native_batch import NativeAnswer, NativeBatch
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.loader import DtypeName, load_model
from serving.model.model import Model
from serving.model.native import library
from serving.model.native.layout import Form
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder, SequenceResult, SequenceStep, StepPlan

BLOCK_TOKENS = 4
MAX_ROWS = 64
RAGGED: dict[str, Any] = {"hidden_size": 72, "moe_intermediate_size": 20, "intermediate_size": 44, "v_head_dim": 6}
GREEDY = SamplingParams(temperature=0)
HAND_OUT = SamplingParams(temperature=0, logprobs=0)
"""Sampling for which the library hands out logits."""


def native_or_skip() -> None:
    """Skip a test on machines without a compiler."""
    if library.load() is None:
        pytest.skip("there is no native library here")


def load_for_native(folder: Path, dtype: DtypeName = "auto") -> Model:
    """A model with panels."""
    native_or_skip()
    return load_model(folder, dtype=dtype, native=True)


def dirty_cache(model: Model, blocks: int = 200, kv_dtype: KvDtype = "auto") -> KvCache:
    """A KV cache with a draft layer whose blocks had other contents before: only written rows may be read."""
    layers = len(model.config.layers) + bool(model.mtp)
    cache = KvCache(model.config, blocks, BLOCK_TOKENS, model.dtype, num_layers=layers, kv_dtype=kv_dtype)
    if kv_dtype == "auto":
        cache.tensor.copy_(torch.randn(cache.tensor.shape, generator=torch.Generator().manual_seed(1)))
    return cache


def torch_executor(folder: Path, dtype: DtypeName = "float32", kv_dtype: KvDtype = "auto") -> TorchExecutor:
    """A torch executor over a cache of its own."""
    model = load_model(folder, dtype=dtype)
    return TorchExecutor(model, dirty_cache(model, kv_dtype=kv_dtype))


def native_executor(
    folder: Path, dtype: DtypeName = "float32", threads: int = 2, kv_dtype: KvDtype = "auto", **sizes: Any
) -> NativeExecutor:
    """A native executor over a cache of its own."""
    model = load_for_native(folder, dtype)
    rows = sizes.pop("max_rows", MAX_ROWS)
    grammars = {name: sizes.pop(name) for name in ("matchers", "most_forced") if name in sizes}
    cache = dirty_cache(model, kv_dtype=kv_dtype, **sizes)
    return NativeExecutor(model, cache, threads=threads, max_rows=rows, **grammars)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ids without special tokens."""
    return torch.randint(6, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def table(number: int, tokens: int) -> list[BlockId]:
    """Scattered blocks of one of up to eight sequences, without overlaps."""
    return [BlockId(number + 8 * i) for i in range(-(-tokens // BLOCK_TOKENS))]


class Feeder:
    """One sequence driven by hand: steps over known tokens that are not fed yet."""

    def __init__(self, number: int, tokens: Sequence[int], sampling: SamplingParams = GREEDY) -> None:
        self.number = number
        self.prompt = list(tokens)
        self.output: list[int] = []
        self.sampling = sampling
        self.fed = 0

    def step(self, size: int | None = None, **more: Any) -> SequenceStep:
        """Feed the next `size` tokens; None = all known ones, first the prompt's. Samples after the last."""
        known = [*self.prompt, *self.output]
        whole = self.prompt if self.fed < len(self.prompt) else known
        tokens = whole[self.fed :] if size is None else whole[self.fed : self.fed + size]
        last = self.fed + len(tokens) == len(known)
        order = SampleOrder(self.sampling, self.prompt, list(self.output)) if last else None
        if not last:
            more.setdefault("next_prompt_token", known[self.fed + len(tokens)])
        blocks = table(self.number, self.fed + len(tokens) + 8)
        more.setdefault("alone", self.fed >= len(self.prompt))
        return SequenceStep(SequenceId(f"s{self.number}"), tokens, self.fed, blocks, order, **more)

    def take(self, step: SequenceStep, result: SequenceResult) -> None:
        """Record the result of a step."""
        self.fed += len(step.tokens) + max(0, len(result.tokens) - 1)
        self.output += result.tokens


def logits_of(executor: TorchExecutor | NativeExecutor, steps: Sequence[SequenceStep]) -> Tensor:
    """Logits `[sequences that sample, vocab]` of each one's last row; all must request log-probabilities."""
    if isinstance(executor, NativeExecutor):
        batch = NativeBatch()
        batch.fill(steps)
        model = executor.model
        answer = NativeAnswer(model.config.vocab_size, model.config.hidden_size, Form(executor._bound.struct.form))
        answer.prepare(batch)
        executor._engine.step(batch, answer)
        return torch.from_numpy(answer.logits)
    wanted = []
    model = executor.model

    def keep(hidden: Tensor) -> Tensor:
        wanted.append(Model.logits(model, hidden))
        return wanted[-1]

    model.logits = keep  # type: ignore[method-assign]
    try:
        executor.execute(StepPlan(0, tuple(steps)))
    finally:
        del model.logits
    return wanted[0] if wanted else torch.empty(0)


def far(found: Tensor, wanted: Tensor) -> float:
    """Largest relative distance over rows."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


def same_logits_and_tokens(native: NativeExecutor, plain: TorchExecutor, tolerance: float) -> None:
    """Assert that both produce the same greedy tokens, and logits within `tolerance`, for any chunks of a prompt."""
    for sizes in ([45], [1] * 3, [5, 4, 17], [2, 40]):
        ours, theirs = Feeder(0, prompt(45), HAND_OUT), Feeder(0, prompt(45), HAND_OUT)
        while len(ours.output) < 4:
            size = sizes.pop(0) if sizes else None
            step, other = ours.step(size), theirs.step(size)
            if step.sample is not None:
                assert far(logits_of(native, [step]), logits_of(plain, [other])) < tolerance
            ours.take(step, native.execute(StepPlan(0, (step,))).results[0])
            theirs.take(other, plain.execute(StepPlan(0, (other,))).results[0])
        assert ours.output == theirs.output
