"""A real model from GGUF: SmolLM2-135M-Instruct answers with the capital of France."""

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from serving.gateway.api.templates.chat_template import load_chat_template
from serving.gateway.api.tokenizer import Tokenizer
from serving.values.sequence import SamplingParams
from tests.model.reference import ReferenceGenerator
from tests.model.smollm2 import smollm2

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris.<|im_end|>"
SAME_AS = "tests/tools/importing/test_command.py::test_smollm2_without_a_network"
pytestmark = [pytest.mark.downloads, pytest.mark.timeout(900), pytest.mark.nightly(SAME_AS)]


def test_files_of_the_folder() -> None:
    folder = smollm2()
    config = json.loads((folder / "config.json").read_text())
    wanted = {
        "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    assert {name: config[name] for name in wanted} == wanted
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert "Apache License" in (folder / "LICENSE").read_text()
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.vocab_size == 49152
    ids = tokenizer.encode("<|im_start|>user\nIt's 2026, isn't it?<|im_end|>", add_special_tokens=True)
    assert [tokenizer.token_string(token) for token in ids] == [
        *("<|im_start|>", "user", "Ċ", "It", "'s", "Ġ", "2", "0", "2", "6", ",", "Ġisn", "'t", "Ġit", "?"),
        "<|im_end|>",
    ]
    assert load_chat_template(folder, tokenizer.special_tokens) is not None


def test_it_answers() -> None:
    folder = smollm2()
    tokenizer = Tokenizer.from_folder(folder)
    template = load_chat_template(folder, tokenizer.special_tokens)
    assert template is not None
    try:
        text = asyncio.run(template.render(template.prepare([{"role": "user", "content": QUESTION}])))
    finally:
        template.close()
    prompt = tokenizer.encode(text, add_special_tokens=False)
    model = ReferenceGenerator(folder, max_tokens=len(prompt) + 20)
    output = model.generate(prompt, SamplingParams(max_tokens=20, temperature=0.0, stop_token_ids=(2,)))
    assert tokenizer.decode(output, skip_special_tokens=False) == ANSWER


def test_it_answers_in_transformers() -> None:
    folder = smollm2()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert isinstance(model, LlamaForCausalLM)
    messages = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        output = model.generate(**prompt, do_sample=False, max_new_tokens=20)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == ANSWER
