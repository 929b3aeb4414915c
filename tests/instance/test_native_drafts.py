"""Draft tokens in the native step: the same output with any number of them, and the same draft tokens as torch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from serving.errors import EngineError
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.kv_arena import KvArena
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.loader import DtypeName
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SequenceStep, StepPlan
from tests.cases.nightly import mostly_nightly
from tests.instance.native_pair import (
    BLOCK_TOKENS,
    GREEDY,
    Feeder,
    load_for_native,
    native_executor,
    prompt,
    table,
    torch_executor,
)
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import GLM4_MOE, GLM_FLASH, SPARSE, V2

WANTED = 24
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=0.8, top_p=0.95, seed=3),
    SamplingParams(temperature=0, repetition_penalty=1.2),
    SamplingParams(temperature=0.6, logprobs=2, seed=8),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"))


def _run(
    executor: NativeExecutor | TorchExecutor, drafts: int | None, *, oracle: list[list[int]] | None = None
) -> tuple[list[list[int]], list[list[tuple[int, ...]]]]:
    """Four sequences together, prompts in chunks: their tokens, and the draft tokens of every step.

    Args:
        drafts: draft tokens requested each step; None = no draft layer.
        oracle: the output; then every other step feeds correct draft tokens instead of its own.
    """
    parts = [Feeder(i, prompt(5 + 9 * i, i), sampling) for i, sampling in enumerate(SAMPLINGS)]
    guesses: list[tuple[int, ...]] = [()] * len(parts)
    told: list[list[tuple[int, ...]]] = [[] for _ in parts]
    for number in range(200):
        going = [i for i, one in enumerate(parts) if len(one.output) < WANTED]
        if not going:
            break
        steps = [_step(parts[i], number, drafts, guesses[i], oracle[i] if oracle is not None else None) for i in going]
        results = executor.execute(StepPlan(number, tuple(steps))).results
        for i, step, result in zip(going, steps, results, strict=True):
            assert len(result.tokens) <= len(step.drafts) + 1
            assert len(result.drafts) == (drafts or 0 if step.sample is not None else 0)
            parts[i].take(step, result)
            guesses[i] = result.drafts
            told[i].append(result.drafts)
    return [one.output[:WANTED] for one in parts], told


def _step(
    one: Feeder, number: int, drafts: int | None, guesses: tuple[int, ...], oracle: list[int] | None
) -> SequenceStep:
    if drafts is None:
        return one.step(12)
    if oracle is not None and number % 2:
        guesses = tuple(oracle[len(one.output) : len(one.output) + drafts])
    running = one.fed == len(one.prompt) + len(one.output) - 1  # only then does a scheduler feed guesses
    return one.step(12, next_drafts=drafts, drafts=guesses if running else ())


SHAPES: list[tuple[dict[str, Any], DtypeName, KvDtype]] = [
    ({}, "bfloat16", "auto"),
    ({}, "float32", "auto"),
    ({}, "float32", "int8"),
    ({"q_lora_rank": None, "attention_bias": True}, "float32", "auto"),
    ({"own_draft_head": True}, "float32", "auto"),
    (GLM_FLASH, "float32", "auto"),
    ({**GLM_FLASH, "own_draft_head": True}, "bfloat16", "int8"),
    ({**V2, "n_shared_experts": 0}, "float32", "auto"),
    (GLM4_MOE, "float32", "auto"),
    (SPARSE, "float32", "auto"),
]


@pytest.mark.parametrize(
    ("shape", "dtype", "kv_dtype"),
    mostly_nightly(SHAPES, SHAPES[::2], "tests/instance/test_native_drafts.py::test_tokens_do_not_depend_on_guesses"),
)
def test_tokens_do_not_depend_on_guesses(
    tmp_path: Path, shape: dict[str, Any], dtype: DtypeName, kv_dtype: KvDtype
) -> None:
    checkpoint = write_random_checkpoint(tmp_path, **shape)
    native = native_executor(checkpoint, dtype, kv_dtype=kv_dtype)
    plain, _ = _run(native, None)
    for drafts in (0, 1, 3):
        assert _run(native, drafts)[0] == plain
        assert _run(native, drafts, oracle=plain)[0] == plain


@pytest.mark.parametrize("length", [2, 12])
def test_no_bit_depends_on_guesses_where_the_caller_draws(folder: Path, length: int) -> None:
    # The last row of a prompt then passes the layers twice, in two forms that round differently.
    native = native_executor(folder, "bfloat16")

    def run(drafts: int | None) -> list[tuple[int, float]]:
        one, told = Feeder(0, prompt(length), SamplingParams(temperature=0, logprobs=0)), []
        for number in range(8):
            step = _step(one, number, drafts, (6, 7, 8)[: drafts or 0], None)
            (result,) = native.execute(StepPlan(number, (step,))).results
            one.take(step, result)
            told += [(found.token, found.logprob) for found in result.logprobs]
        return told

    plain = run(None)
    assert [run(drafts) == plain for drafts in range(4)] == [True] * 4


@pytest.mark.parametrize(
    ("shape", "drafts"),
    [
        ({}, 0),
        ({"own_draft_head": True, "rope_interleave": False}, 3),
        ({**GLM_FLASH, "own_draft_head": True}, 3),
        (GLM4_MOE, 1),
    ],
)
def test_guesses_equal_torch(tmp_path: Path, shape: dict[str, Any], drafts: int) -> None:
    checkpoint = write_random_checkpoint(tmp_path, **shape)
    native, plain = native_executor(checkpoint), torch_executor(checkpoint)
    tokens, _ = _run(plain, None)
    ours, theirs = _run(native, drafts, oracle=tokens), _run(plain, drafts, oracle=tokens)
    assert ours[0] == theirs[0] == tokens
    for sampling, own, other in zip(SAMPLINGS[:2], ours[1][:2], theirs[1][:2], strict=True):
        assert own == other, sampling
    last = len(native.model.config.layers)
    for number, output in enumerate(tokens[:2]):
        stands = len(prompt(5 + 9 * number)) + len(output) - 4
        ours_rows, theirs_rows = (_rows(executor.kv_cache, number, stands, last) for executor in (native, plain))
        torch.testing.assert_close(ours_rows, theirs_rows, rtol=1e-4, atol=1e-4)


def _rows(cache: KvArena | KvCache, number: int, tokens: int, layer: int) -> torch.Tensor:
    assert isinstance(cache, KvCache)
    blocks = torch.tensor(table(number, tokens))
    return cache.tensor[blocks, layer].flatten(0, 1)[:tokens]


def test_right_guesses_are_taken(folder: Path) -> None:
    native = native_executor(folder)
    tokens, _ = _run(native, None)
    one = Feeder(0, prompt(5), GREEDY)
    step = one.step()
    one.take(step, native.execute(StepPlan(0, (step,))).results[0])
    right, wrong = tuple(tokens[0][1:4]), 7 if tokens[0][2] != 7 else 8
    for drafts, taken in ((right, 4), ((right[0], wrong, right[2]), 2), ((wrong,), 1)):
        step = one.step(drafts=drafts, next_drafts=2)
        result = native.execute(StepPlan(1, (step,))).results[0]
        assert list(result.tokens) == tokens[0][1 : 1 + taken]
        assert len(result.drafts) == 2


def test_guesses_need_a_draft_layer(folder: Path) -> None:
    model = load_for_native(folder)
    bare = KvCache(model.config, 20, BLOCK_TOKENS, model.dtype)
    executor = NativeExecutor(model, bare, threads=1, max_rows=8)
    with pytest.raises(EngineError, match="no draft layer"):
        executor.execute(StepPlan(0, (Feeder(0, prompt(5)).step(next_drafts=1),)))
