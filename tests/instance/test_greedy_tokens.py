"""The native step's greedy tokens are transformers' own, of each family's checkpoint as transformers writes it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from serving.instance.executors.native_executor import NativeExecutor
from serving.values.step_plan import StepPlan
from tests.instance.native_pair import Feeder, native_executor, prompt
from tests.model.families.checkpoints import CASES, write_family

PROMPT, TOKENS = 40, 24
"""Together the 64 tokens of context up to which small sparse models choose all, and small windows show all."""


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_equal_transformers(case: str, tmp_path: Path) -> None:
    model = write_family(tmp_path, case)
    executor = native_executor(tmp_path)
    assert generate(executor, sizes=[PROMPT]) == generate(executor, sizes=[17, 1, 22]) == expected(model)


def generate(executor: NativeExecutor, sizes: list[int]) -> list[int]:
    """Tokens behind a prompt that is fed in steps of these sizes."""
    feeder, left = Feeder(0, prompt(PROMPT)), list(sizes)
    while len(feeder.output) < TOKENS:
        step = feeder.step(left.pop(0) if left else None)
        feeder.take(step, executor.execute(StepPlan(0, (step,))).results[0])
    return feeder.output


def expected(model: Any) -> list[int]:
    """Transformers' tokens, from the whole text each time."""
    text = prompt(PROMPT)
    with torch.inference_mode():
        for _ in range(TOKENS):
            text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    return text[PROMPT:]
