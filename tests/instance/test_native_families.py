"""The native step of every family: torch's logits and tokens, and the same bits for any batches of grouped attention.

Grouped attention has one form, so a prompt may be cut anywhere, down to single tokens, without changing a bit.
"""

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from serving.instance.executors.native_executor import NativeExecutor
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.loader import DtypeName
from serving.values.step_plan import StepPlan
from tests.cases.nightly import mostly_nightly
from tests.instance.native_pair import (
    HAND_OUT,
    Feeder,
    far,
    logits_of,
    native_executor,
    prompt,
    same_logits_and_tokens,
    torch_executor,
)
from tests.model.families.checkpoints import CASES, ONE_OF_EACH, write_family

TOLERANCE = 1e-4
PROMPT, TOKENS = 40, 24
"""Together the 64 tokens of context up to which small sparse models choose all, and small windows show all."""
HERE = "tests/instance/test_native_families.py::"
GROUPED = ("llama one KV head", "smollm3", "qwen3", "qwen3_moe", "glm4_moe", "gpt_oss")


@pytest.mark.parametrize("case", mostly_nightly(CASES, ONE_OF_EACH, HERE + "test_equal_to_torch_and_transformers"))
def test_equal_to_torch_and_transformers(tmp_path: Path, case: str) -> None:
    """Logits equal torch's, greedy tokens transformers' own, for each family's checkpoint as transformers writes it."""
    model = write_family(tmp_path, case)
    native, plain = native_executor(tmp_path), torch_executor(tmp_path)
    same_logits_and_tokens(native, plain, TOLERANCE)
    feeder, sizes = Feeder(0, prompt(PROMPT)), [17, 1, 22]
    while len(feeder.output) < TOKENS:
        step = feeder.step(sizes.pop(0) if sizes else None)
        feeder.take(step, native.execute(StepPlan(0, (step,))).results[0])
    text = prompt(PROMPT)
    with torch.inference_mode():
        for _ in range(TOKENS):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    assert feeder.output == text[PROMPT:]


@pytest.mark.parametrize(
    ("case", "dtype", "kv_dtype", "most"),
    [
        ("llama", "float32", "int8", 3e-3),
        ("qwen3", "bfloat16", "auto", 0.04),
        ("smollm3", "float32", "int8", 3e-3),
        ("gpt_oss", "bfloat16", "auto", 0.04),
    ],
)
def test_rounded_numbers_are_close_to_torchs(
    tmp_path: Path, case: str, dtype: DtypeName, kv_dtype: KvDtype, most: float
) -> None:
    """A number between two steps of a scale may be rounded either way; torch rounds the residual stream, too."""
    write_family(tmp_path, case)
    native, plain = native_executor(tmp_path, dtype, kv_dtype=kv_dtype), torch_executor(tmp_path, dtype, kv_dtype)
    for sizes in ([30], [1] * 30, [3, 20, 7]):
        one = Feeder(1, prompt(30, 4), HAND_OUT)
        for size in sizes:
            step = one.step(size)
            ours, theirs = logits_of(native, [step]), logits_of(plain, [step])
            one.fed += size
        assert far(ours, theirs) < most


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_both_steps_write_the_same_rows(tmp_path: Path, kv_dtype: KvDtype) -> None:
    """Rows of the first layer, whose inputs are the same: a handoff may go from one to the other."""
    write_family(tmp_path, "qwen3")
    step = Feeder(1, prompt(30), HAND_OUT).step()
    native, plain = native_executor(tmp_path, kv_dtype=kv_dtype), torch_executor(tmp_path, kv_dtype=kv_dtype)
    rows = []
    for executor in (native, plain):
        executor.execute(StepPlan(0, (step,)))
        assert isinstance(executor.kv_cache, KvCache)
        tensor = executor.kv_cache.tensor[[int(block) for block in step.block_table[:7]], 0]
        rows.append(executor.kv_cache.layout.unpack(tensor.flatten(0, 1)))
    assert executor.kv_cache.layout_fingerprint == native.kv_cache.layout_fingerprint
    assert far(*rows) < (1e-6 if kv_dtype == "auto" else 3e-3)


def _fed(executor: NativeExecutor, number: int, sizes: list[int], *, alone: bool) -> Tensor:
    """Logits after a prompt of 40 tokens, and after five more that follow one by one."""
    one, found = Feeder(number, prompt(40, 3), HAND_OUT), []
    for size in [*sizes, 1, 1, 1, 1, 1]:
        step = one.step(size, **({"alone": True} if alone else {}))
        if step.sample is not None:
            found.append(logits_of(executor, [step])[0])
        one.take(step, executor.execute(StepPlan(0, (step,))).results[0])
    return torch.stack(found)


CUTS = [*product(GROUPED, ("float32", "bfloat16"), ("auto", "int8"))]


@pytest.mark.parametrize(
    ("case", "dtype", "kv_dtype"), mostly_nightly(CUTS, CUTS[::5], HERE + "test_no_bit_depends_on_the_cut")
)
def test_no_bit_depends_on_the_cut(tmp_path: Path, case: str, dtype: DtypeName, kv_dtype: KvDtype) -> None:
    write_family(tmp_path, case)
    native = native_executor(tmp_path, dtype, kv_dtype=kv_dtype)
    whole = _fed(native, 0, [40], alone=False)
    for number, sizes in enumerate(([1] * 40, [7, 32, 1], [20, 3, 17]), 1):
        for alone in (False, True):
            assert torch.equal(_fed(native, number, sizes, alone=alone), whole)


MIXED = [*product(GROUPED, ("float32", "bfloat16"))]


@pytest.mark.parametrize(
    ("case", "dtype"), mostly_nightly(MIXED, MIXED[::3], HERE + "test_mixed_steps_equal_lone_ones_to_the_bit")
)
def test_mixed_steps_equal_lone_ones_to_the_bit(tmp_path: Path, case: str, dtype: DtypeName) -> None:
    write_family(tmp_path, case)
    native, other = native_executor(tmp_path, dtype), native_executor(tmp_path, dtype, threads=3)
    shapes = [(9, [9, 1, 1]), (30, [11, 6, 13]), (2, [2, 1, 1]), (40, [3, 30, 7]), (17, [4, 13, 1])]
    parts = [Feeder(i, prompt(length, i), HAND_OUT) for i, (length, _) in enumerate(shapes)]
    for number in range(3):
        steps = [one.step(sizes[number]) for one, (_, sizes) in zip(parts, shapes, strict=True)]
        together = logits_of(native, steps)
        alone = torch.cat([logits_of(other, [step]) for step in steps])
        assert torch.equal(together, alone)
        results = native.execute(StepPlan(number, tuple(steps))).results
        other.execute(StepPlan(number, tuple(steps)))
        for one, step, result in zip(parts, steps, results, strict=True):
            one.take(step, result)
