"""A real model in INT8, by plain rounding: it still knows capitals, and its perplexity is hardly higher."""

import asyncio
import json
from pathlib import Path

import pytest

from serving.cli import main
from serving.gateway.api.templates.chat_template import load_chat_template
from serving.gateway.api.tokenizer import Tokenizer
from serving.values.sequence import SamplingParams
from tests.model.reference import ReferenceGenerator
from tests.model.smollm2 import smollm2

SAME_AS = "tests/tools/quantize/test_round_trip.py::test_every_variant_computes_nearly_the_same"
pytestmark = [pytest.mark.downloads, pytest.mark.timeout(900), pytest.mark.nightly(SAME_AS)]

ROOT = Path(__file__).parents[3]
QUESTION, ANSWER = "What is the capital of Japan?", "The capital of Japan is Tokyo."


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("int8") / "smollm2"
    arguments = ["--model", str(smollm2()), "--out", str(out), "--text", str(ROOT / "README.md"), "--tokens", "384"]
    steps = ["--no-trials", "--without", "fold", "search", "clip", "compensate", "--quiet"]
    assert main(["quantize", *arguments, *steps]) == 0
    return out


def test_it_answers(int8: Path) -> None:
    tokenizer = Tokenizer.from_folder(int8)
    template = load_chat_template(int8, tokenizer.special_tokens)
    assert template is not None
    try:
        text = asyncio.run(template.render(template.prepare([{"role": "user", "content": QUESTION}])))
    finally:
        template.close()
    prompt = tokenizer.encode(text, add_special_tokens=False)
    model = ReferenceGenerator(int8, max_tokens=len(prompt) + 20)
    output = model.generate(prompt, SamplingParams(max_tokens=20, temperature=0.0, stop_token_ids=(2,)))
    assert tokenizer.decode(output, skip_special_tokens=True) == ANSWER


def test_text_is_hardly_less_likely(int8: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    text = ["--text", str(ROOT / "SECURITY.md"), "--dtype", "float32", "--json", str(out), "--quiet"]
    assert main(["evaluate", "--model", str(int8), "--reference", str(smollm2()), *text]) == 0
    (told,) = json.loads(out.read_text())["texts"]
    assert told["perplexity"]["value"] < 100, "of a language model, not of chance: 49,152"
    assert 0.98 < told["compared"]["ratio"]["value"] < 1.08
    assert told["compared"]["divergence_median"] < 0.06
