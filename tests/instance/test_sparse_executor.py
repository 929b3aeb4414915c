"""Sparse attention under real engines: whatever becomes of a sequence, its tokens are those of transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM

from serving.ids import SequenceId
from serving.instance.core.settings import EngineSettings
from serving.model.loader import load_model
from serving.model.model import Model
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.instance.torch_pair import prompt, run_alone, run_pair
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import CHOOSING, SHARED_CHOICE

pytestmark = pytest.mark.usefixtures("every_guess")

SETTINGS = EngineSettings(block_tokens=4, max_step_tokens=24, max_sequences=4, max_model_len=96, watermark_blocks=0)
WANTED = 12


@pytest.fixture(scope="module", params=[CHOOSING, SHARED_CHOICE], ids=["own", "shared"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), **request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


def orders() -> list[SequenceSpec]:
    """Two families of prompts with a common beginning, so that prefixes are found; all longer than is read whole."""
    stems, sampling = (prompt(26, 1), prompt(15, 2)), SamplingParams(temperature=0, max_tokens=WANTED)
    return [
        SequenceSpec(SequenceId(f"s{i}"), (*stems[i % 2], *prompt(3 + i, 10 + i)), sampling) for i in range(6)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found = {}
    for spec in orders():
        tokens = list(spec.prompt)
        for _ in range(WANTED):
            with torch.inference_mode():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        found[str(spec.sequence_id)] = tokens[-WANTED:]
    return found


def guessing(drafts: int) -> EngineSettings:
    return replace(SETTINGS, draft_tokens=drafts, speculation=drafts > 0)


@pytest.mark.parametrize("drafts", [0, 2])
def test_chunks_prefixes_and_guesses(model: Model, expected: dict[str, list[int]], drafts: int) -> None:
    told = run_alone(model, guessing(drafts), 96, orders())
    assert told.output == expected
    assert told.prefix_hits > 0


@pytest.mark.parametrize("drafts", [0, 2])
def test_preemption(model: Model, expected: dict[str, list[int]], drafts: int) -> None:
    told = run_alone(model, guessing(drafts), 24, orders())
    assert told.preemptions > 0
    assert told.output == expected


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_handoff(model: Model, expected: dict[str, list[int]], drafts: int) -> None:
    assert run_pair(model, guessing(drafts), 96, orders()).output == expected


def test_a_resumed_sequence(model: Model, expected: dict[str, list[int]]) -> None:
    resumed = [structs.replace(one, output=tuple(expected[one.sequence_id][:5])) for one in orders()]
    told = run_alone(model, guessing(0), 96, resumed)
    assert told.output == {name: tokens[5:] for name, tokens in expected.items()}
