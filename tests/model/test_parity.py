"""Logits equal transformers' implementation: many shapes, chunks of any size, paged decode."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM

from serving.model.loader import load_model
from serving.values.sequence import SamplingParams
from tests.model.paged import PagedRunner, pieces_of
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.reference import ReferenceGenerator
from tests.model.shapes import SHAPES

STORYTELLER = Path(__file__).resolve().parents[2] / "deploy" / "models" / "storyteller"
TOLERANCE = 1e-4
LENGTH = 45


Case = tuple[Path, list[int], Tensor]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """By shape: a checkpoint, a prompt, and transformers' logits for it."""
    made: dict[str, Case] = {}

    def make(shape: str) -> Case:
        if shape not in made:
            folder = write_random_checkpoint(
                tmp_path_factory.mktemp("model"), num_nextn_predict_layers=0, **SHAPES[shape]
            )
            tokens = torch.randint(6, 320, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
            reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
            with torch.inference_mode():
                made[shape] = folder, tokens, reference(torch.tensor([tokens])).logits[0]
        return made[shape]

    return make


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_whole_prefill_and_paged_decode(shape: str, case: Callable[[str], Case]) -> None:
    folder, tokens, expected = case(shape)
    runner = PagedRunner(load_model(folder))
    assert difference(runner.run("whole", tokens, [LENGTH]), expected) < TOLERANCE
    assert difference(runner.run("decode", tokens, [35] + [1] * (LENGTH - 35)), expected) < TOLERANCE


@pytest.mark.parametrize("shape", ["v3", "v3 yarn", "v3 rope halves and bias", "v2 groups"])
def test_chunks_of_any_size(shape: str, case: Callable[[str], Case]) -> None:
    folder, tokens, expected = case(shape)
    model = load_model(folder)
    for size in (1, 3, 7, 16, LENGTH - 1):
        found = PagedRunner(model, seed=size).run("s", tokens, pieces_of(size, LENGTH))
        assert difference(found, expected) < TOLERANCE, size


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_mix_of_sequences_and_chunks(data: st.DataObject, case: Callable[[str], Case]) -> None:
    """Several sequences advance by different amounts in the same steps; every logit equals that of the lone run."""
    folder, tokens, expected = case("v3")
    block_tokens = data.draw(st.sampled_from([1, 4, 16]))
    runner = PagedRunner(load_model(folder), num_blocks=256, block_tokens=block_tokens)
    fed = dict.fromkeys("abc", 0)
    while min(fed.values()) < LENGTH:
        open_ = [name for name, n in fed.items() if n < LENGTH]
        sizes = {name: data.draw(st.integers(1, LENGTH - fed[name])) for name in open_}
        found = runner.step([(name, tokens[fed[name] : fed[name] + sizes[name]]) for name in open_])
        for name, logits in zip(open_, found, strict=True):
            assert difference(logits, expected[fed[name] : fed[name] + sizes[name]]) < TOLERANCE
            fed[name] += sizes[name]


def test_long_context_takes_several_query_blocks(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, num_nextn_predict_layers=0, num_hidden_layers=2)
    tokens = torch.randint(6, 320, (700,), generator=torch.Generator().manual_seed(2)).tolist()
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    runner = PagedRunner(load_model(folder), num_blocks=128, block_tokens=16)
    assert difference(runner.run("whole", tokens, [700]), expected) < TOLERANCE
    assert difference(runner.run("parts", tokens, [37, 600, 63]), expected) < TOLERANCE


def test_demo_model() -> None:
    reference = AutoModelForCausalLM.from_pretrained(STORYTELLER, dtype=torch.float32, attn_implementation="eager")
    tokens = torch.randint(8, 1000, (90,), generator=torch.Generator().manual_seed(4)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
    runner = PagedRunner(load_model(STORYTELLER, dtype="float32"), block_tokens=16)
    assert difference(runner.run("whole", tokens, [90]), expected) < TOLERANCE
    assert difference(runner.run("parts", tokens, [17, 61, *[1] * 12]), expected) < TOLERANCE


def test_reference_generator_equals_transformers(case: Callable[[str], Case]) -> None:
    folder, tokens, _ = case("v3")
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # typed in part, by its version
    expected = reference.generate(torch.tensor([tokens]), max_new_tokens=20, do_sample=False, eos_token_id=None)
    generator = ReferenceGenerator(folder, max_tokens=128)
    assert generator.generate(tokens, SamplingParams(max_tokens=20, temperature=0)) == expected[0, LENGTH:].tolist()


def test_reference_generator_ends_with_the_stop_token(case: Callable[[str], Case]) -> None:
    folder, tokens, _ = case("v3")
    generator = ReferenceGenerator(folder, max_tokens=128)
    free = generator.generate(tokens, SamplingParams(max_tokens=20, temperature=0.8, seed=5))
    stopped = generator.generate(
        tokens, SamplingParams(max_tokens=20, temperature=0.8, seed=5, stop_token_ids=(free[7],))
    )
    assert stopped == free[: free.index(free[7]) + 1]
