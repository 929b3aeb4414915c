"""A folder converted to GGUF and back is the same model: its tensors bit for bit, its logits, its tokenizer's ids."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from serving.gateway.api.tokenizer import Tokenizer
from serving.model.config import read_architecture
from serving.tools.importing.import_run import Dtype, ImportReport, import_gguf
from tests.model.random_checkpoint import write_random_checkpoint
from tests.tools.importing.folders import logits, write_dense
from tests.tools.importing.gguf_models import TEMPLATE, write_gguf

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def imported(path: Path, out: Path, dtype: Dtype = "float32") -> ImportReport:
    return import_gguf(path, out, dtype, lambda what, done, of: None)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for part in folder.glob("*.safetensors") for name, value in load_file(part).items()}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 24, "num_key_value_heads": 4}),
        ("llama", {"attention_bias": True, "vocab_size": 350}),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
        ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    ],
    ids=["llama", "llama_tied_wide", "llama_bias", "qwen2", "qwen3"],
)
def test_dense_models(tmp_path: Path, kind: str, overrides: dict[str, object]) -> None:
    model = write_dense(tmp_path / "source", kind, **overrides)
    report = imported(write_gguf(tmp_path / "model.gguf", tmp_path / "source"), tmp_path / "out")
    assert_same(tensors_of(tmp_path / "out"), tensors_of(tmp_path / "source"))
    assert report.architecture == kind
    assert report.parameters == sum(value.numel() for value in tensors_of(tmp_path / "source").values())
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert type(again) is type(model)
    assert torch.equal(logits(again), logits(model))
    assert read_architecture(tmp_path / "out") == read_architecture(tmp_path / "source")


def test_llama3s_rope_is_found_by_its_factors(tmp_path: Path) -> None:
    model = write_dense(tmp_path / "source", "llama", rope_parameters=LLAMA3, head_dim=64)
    plain = 500000.0 ** (-torch.arange(0, 64, 2).float() / 64)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = write_gguf(tmp_path / "model.gguf", tmp_path / "source", extra={"rope_freqs.weight": factors})
    imported(path, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert again.config.rope_parameters["rope_type"] == "llama3"
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("v3", [True, False], ids=["deepseek_v3", "deepseek_v2"])
@pytest.mark.parametrize("one_expansion", [False, True], ids=["two_parts", "one_expansion"])
def test_deepseek(tmp_path: Path, v3: bool, one_expansion: bool) -> None:
    v2: dict[str, object] = {
        "model_type": "deepseek_v2",
        "scoring_func": "softmax",
        "topk_method": "group_limited_greedy",
    }
    scales = {"mscale": 0.7, "mscale_all_dim": 0.7}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, **scales}
    own: dict[str, Any] = {} if v3 else {**v2, "norm_topk_prob": False, "q_lora_rank": None, "rope_scaling": yarn}
    source = write_random_checkpoint(tmp_path / "source", num_nextn_predict_layers=0, **own)
    scaled = {
        "deepseek2.rope.scaling.type": "yarn",
        "deepseek2.rope.scaling.factor": 4.0,
        "deepseek2.rope.scaling.original_context_length": 256,
        "deepseek2.rope.scaling.yarn_log_multiplier": 0.07,
    }
    path = write_gguf(tmp_path / "model.gguf", source, one_expansion=one_expansion, keys=None if v3 else scaled)
    imported(path, tmp_path / "out")
    assert_same(tensors_of(tmp_path / "out"), tensors_of(source))
    config, wanted = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "out", source))
    if not v3:
        wanted["rope_scaling"]["rope_type"] = wanted["rope_scaling"].pop("type")
        wanted["n_shared_experts"] = config["n_shared_experts"]
    unsaid = ("architectures", "pad_token_id", "rope_interleave")
    ours = {name: config.get(name) for name in wanted if name not in unsaid}
    assert ours == {name: wanted[name] for name in ours}
    assert read_architecture(tmp_path / "out") == read_architecture(source)


def test_files_without_drafts_in_parts_and_shards(tmp_path: Path) -> None:
    source = write_random_checkpoint(tmp_path / "source")
    imported(write_gguf(tmp_path / "model.gguf", source), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_nextn_predict_layers"] == 0
    assert not any(name.startswith("model.layers.3.") for name in tensors_of(tmp_path / "out"))

    write_dense(tmp_path / "source", "qwen3")
    write_gguf(tmp_path / "model.gguf", tmp_path / "source", split_tensors=9)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) == 3
    for number, part in enumerate(parts[:2]):
        imported(part, tmp_path / f"out{number}")
        assert_same(tensors_of(tmp_path / f"out{number}"), tensors_of(tmp_path / "source"))


def test_bfloat16_rounds_what_was_quantised(tmp_path: Path) -> None:
    write_dense(tmp_path / "source", "llama")
    wanted = tensors_of(tmp_path / "source")
    for kind, step in ((GGMLQuantizationType.F16, 2**-11), (GGMLQuantizationType.Q8_0, 1 / 254)):
        path = write_gguf(tmp_path / f"{kind.name}.gguf", tmp_path / "source", kind=kind)
        report = imported(path, tmp_path / kind.name, "bfloat16")
        assert report.kinds[kind.name] > 10
        for name, value in tensors_of(tmp_path / kind.name).items():
            assert value.dtype == torch.bfloat16
            error = (value.float() - wanted[name]).abs().max() / wanted[name].abs().max()
            assert error < step + 2**-8, name


def test_files_beside_the_weights(tmp_path: Path) -> None:
    write_dense(tmp_path / "source", "llama", vocab_size=350)  # 30 more than the tokenizer has, which GGUF fills up
    keys = {"general.sampling.top_k": 20, "tokenizer.ggml.eot_token_id": 4}
    imported(write_gguf(tmp_path / "model.gguf", tmp_path / "source", keys=keys), tmp_path / "out", "bfloat16")
    out = tmp_path / "out"
    assert (out / "chat_template.jinja").read_text() == TEMPLATE
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation == {
        "bos_token_id": 1,
        "eos_token_id": [2, 4],
        "do_sample": True,
        "temperature": pytest.approx(0.6),
        "top_k": 20,
    }
    config = json.loads((out / "config.json").read_text())
    assert (config["torch_dtype"], config["eos_token_id"], config["vocab_size"]) == ("bfloat16", 2, 350)
    source, ours = Tokenizer.from_folder(tmp_path / "source"), Tokenizer.from_folder(out)
    text = "<|bos|>the cat and the other thing on  the\n\tÜbermut 🐸 <|eos|>"
    assert ours.encode(text, add_special_tokens=True) == source.encode(text, add_special_tokens=True)
    assert ours.special_ids == source.special_ids
    assert ours.bytes_of == source.bytes_of
    assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == source.encode(text, add_special_tokens=True)


def test_shards_have_an_index(tmp_path: Path) -> None:
    model = write_dense(tmp_path / "source", "qwen2")
    path = write_gguf(tmp_path / "model.gguf", tmp_path / "source")
    import_gguf(path, tmp_path / "out", "float32", lambda *_: None, shard_bytes=100_000)
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(again), logits(model))


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    write_dense(tmp_path / "source", "llama")
    path = write_gguf(tmp_path / "model.gguf", tmp_path / "source")
    (tmp_path / "new").mkdir()

    def interrupted(what: str, done: int, of: int) -> None:
        if done > of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_gguf(path, tmp_path / "new" / "out", "bfloat16", interrupted)
    assert list((tmp_path / "new").iterdir()) == []


def test_progress_ends_at_all_there_is(tmp_path: Path) -> None:
    write_dense(tmp_path / "source", "qwen2")
    told: list[tuple[int, int]] = []
    path = write_gguf(tmp_path / "model.gguf", tmp_path / "source")
    report = import_gguf(path, tmp_path / "out", "float32", lambda what, done, of: told.append((done, of)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0][0] == 0
    assert told[-1] == (report.stored_bytes, report.stored_bytes)
    assert np.isclose(report.written_bytes, report.stored_bytes), "float32 both"
