"""A row's bits depend only on its sequence and its position: not on the cuts of steps, or on recomputation.

So a sequence that was preempted, was resumed on another instance or found its prefix in a cache continues with the
same tokens, in bfloat16 and in INT8 as in float32.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from serving.instance.executors import step_batch
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.kv_shape import KvDtype
from serving.model.loader import load_model
from serving.values.step_plan import StepPlan
from tests.cases.nightly import mostly_nightly
from tests.instance.native_pair import HAND_OUT, RAGGED, Feeder, dirty_cache, far, logits_of, native_executor, prompt
from tests.model.int8_checkpoint import quantised_checkpoint
from tests.model.random_checkpoint import Dtype, write_random_checkpoint
from tests.model.shapes import FAMILIES

LENGTH, TOKENS = 45, 9
CUTS = {"one by one": [1] * LENGTH, "short tail": [43, 2], "short beginning": [3, 42], "mixed": [17, 4, 16, 5, 1, 2]}


def feed(executor: NativeExecutor, feeder: Feeder, sizes: Sequence[int] = ()) -> list[Tensor]:
    """Feed in steps of these sizes, then all known tokens. Returns: logits of each draw."""
    found, left = [], list(sizes)
    while len(feeder.output) < TOKENS:
        step = feeder.step(left.pop(0) if left else None)
        if step.sample is not None:
            found.append(logits_of(executor, [step])[0].clone())
        feeder.take(step, executor.execute(StepPlan(0, (step,))).results[0])
    return found


def last_logits(executor: NativeExecutor | TorchExecutor, sizes: Sequence[int]) -> Tensor:
    """Last logits of a sequence that is resumed with 290 tokens after its prompt of 20, fed in steps of these sizes."""
    feeder = Feeder(0, prompt(20), HAND_OUT)
    feeder.output = prompt(290, 9)
    for size in sizes:
        step = feeder.step(size)
        if step.sample is not None:
            return logits_of(executor, [step])[0].clone()
        feeder.take(step, executor.execute(StepPlan(0, (step,))).results[0])
    raise AssertionError("the steps do not reach the end")


@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_rows_behind_a_prompt(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_random_checkpoint(tmp_path, **FAMILIES[family])
    native = native_executor(folder, blocks=8 * 80, max_rows=300)
    few = last_logits(native, [20, *[4] * 73])
    assert torch.equal(last_logits(native, [20, 290]), few)
    model = load_model(folder, dtype="float32")
    plain = TorchExecutor(model, dirty_cache(model, blocks=8 * 80))
    whole = last_logits(plain, [20, 290])
    assert far(whole[None], few[None]) < 1e-4
    monkeypatch.setattr(step_batch, "_GATHERED_ROWS", 2048)
    assert far(last_logits(plain, [20, 290])[None], whole[None]) < 1e-6


def checkpoint(folder: Path, family: str, kind: str) -> tuple[Path, Dtype]:
    shape = dict(FAMILIES[family])
    if "ragged" in kind:
        shape |= {key: width for key, width in RAGGED.items() if shape.get(key, width) is not None}
    if "int8" in kind:
        return quantised_checkpoint(folder, dtype="bfloat16", **shape), "bfloat16"
    dtype: Dtype = "float32" if kind == "float32" else "bfloat16"
    return write_random_checkpoint(folder, dtype=dtype, **shape), dtype


EVERY = [*product(FAMILIES, ("float32", "bfloat16", "int8", "int8 ragged"), ("auto", "int8"))]
SAME_AS = "tests/instance/test_same_bits.py::test_however_a_sequence_is_cut_and_begun_again"


@pytest.mark.parametrize(("family", "kind", "kv_dtype"), mostly_nightly(EVERY, EVERY[::5], SAME_AS))
def test_however_a_sequence_is_cut_and_begun_again(family: str, kind: str, kv_dtype: KvDtype, tmp_path: Path) -> None:
    executor = native_executor(*checkpoint(tmp_path, family, kind), kv_dtype=kv_dtype)
    first = Feeder(0, prompt(LENGTH), HAND_OUT)
    wanted = feed(executor, first)
    for number, (name, sizes) in enumerate(CUTS.items()):
        other = Feeder(1 + number, first.prompt, HAND_OUT)
        assert all(map(torch.equal, feed(executor, other, sizes), wanted)), name
    for known in (1, 2, 5, 8):
        for cut in ((), (20, 25, 1, 1), (44, 1, 4)):
            again = Feeder(5, first.prompt, HAND_OUT)
            again.output = first.output[:known]
            assert all(map(torch.equal, feed(executor, again, cut), wanted[known:])), (known, cut)
            assert again.output == first.output
