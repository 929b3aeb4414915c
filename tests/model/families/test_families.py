"""Each family's logits equal transformers', whole, in chunks, token by token, and in a batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from serving.errors import ModelError
from serving.model.architecture import LatentShape
from serving.model.config import architecture_of, read_architecture
from serving.model.families.registry import FAMILIES, REFUSED
from serving.model.loader import load_model
from tests.model.families.checkpoints import CASES, CHOOSING_CASES, write_family, written_config
from tests.model.paged import PagedRunner, pieces_of

TOLERANCE = 1e-4
LENGTH = 45


@pytest.mark.parametrize("case", [*CASES, *CHOOSING_CASES])
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    model = write_family(tmp_path, case)
    tokens = torch.randint(6, 320, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    runner = PagedRunner(load_model(tmp_path, dtype="float32"))
    for name, pieces in {
        "whole": [LENGTH], "decode": [35] + [1] * (LENGTH - 35), "chunks": pieces_of(7, LENGTH),
    }.items():  # fmt: skip
        found = runner.run(name, tokens, pieces)
        assert float((found - expected).abs().max()) < TOLERANCE, name
    batch = runner.step([(name, tokens[:30]) for name in "abc"])
    assert all(float((one - expected[:30]).abs().max()) < TOLERANCE for one in batch)


def test_every_family_has_a_case() -> None:
    assert {case.split(" ")[0] for case in CASES} | {"deepseek_v2", "deepseek_v3", "kimi_k2"} == set(FAMILIES)


@pytest.mark.parametrize("model_type", REFUSED)
def test_what_is_left_out_is_refused_with_the_reason(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelError, match=f"architecture '{model_type}' is not served .*; serve one of"):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("llama", {"attention_out_scale": 2.0}, "attention_out_scale = 2.0: not supported for this architecture"),
        ("llama", {"num_key_value_heads": 4}, "6 heads cannot share 4 KV heads"),
        ("llama", {"mlp_bias": True}, "mlp_bias = True is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5.0}}, "malformed key 'low_freq_factor'"),
        ("llama", {"rope_parameters": {"rope_theta": 5.0, "mscale": 2}}, "have the key mscale, which is not supported"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ("llama", {"num_hidden_layers": 10**9}, "exceeds the 4096 layers"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 4 layers"),
        ("qwen3", {"layer_types": ["linear_attention"] * 4}, "layer_types names 'linear_attention'"),
        ("qwen3_moe", {"mlp_only_layers": "none"}, "malformed key mlp_only_layers"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "exceeds the 8 in reach"),
        ("glm4_moe", {"partial_rotary_factor": 0.25, "rope_parameters": None}, "5 of a head's 20 elements"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "mlp_layer_types has 1 entries"),
        ("glm4_moe_lite", {"query_scale": 0.5}, "query_scale = 0.5"),
        ("gpt_oss", {"layer_types": None}, "missing or malformed key 'layer_types'"),
        ("gpt_oss", {"rope_parameters": None}, "missing or malformed key 'rope_scaling'"),
        ("gpt_oss", {"swiglu_limit": -1.0}, "swiglu_limit = -1.0 must be at least 0"),
        ("youtu", {"attention_bias": "yes"}, "malformed key attention_bias"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank is missing: an indexer's queries"),
        ("deepseek_v32", {"index_head_dim": 4}, "qk_rope_head_dim = 8 exceeds index_head_dim = 4"),
        ("deepseek_v32", {"indexer_rope_interleave": True}, "indexer_rope_interleave = True is not supported"),
        ("deepseek_v32", {"indexer_types": ["full", "shared", "full"]}, "indexer_types = .*: not supported"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 3}, "layer_types names 'full_attention'"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 3}, "the first layer's indexer is shared"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "indexer_types has 1 entries for 3 layers"),
        (
            "glm_moe_dsa",
            {"indexer_types": None, "index_topk_pattern": "FXS"},
            "index_topk_pattern = 'FXS' is not one F or S",
        ),
    ],
)
def test_what_changes_results_and_is_not_known_is_refused(
    case: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(written_config(case) | change))
    with pytest.raises(ModelError, match=message):
        read_architecture(tmp_path)


@pytest.mark.parametrize(
    "keys",
    [{}, {"index_topk_freq": 4}, {"index_topk_freq": 3, "index_skip_topk_offset": 1}, {"index_topk_pattern": "FFSSFS"}],
)
def test_layers_that_share_a_choice_are_those_of_transformers(keys: dict[str, Any]) -> None:
    config = AutoConfig.for_model("glm_moe_dsa", num_hidden_layers=6, **keys)
    raw = {key: value for key, value in config.to_dict().items() if key != "indexer_types"}
    found = architecture_of(raw | keys, {})
    shared = [isinstance(one.attention, LatentShape) and one.attention.indexer.shared for one in found.layers]  # type: ignore[union-attr]
    assert shared == [kind == "shared" for kind in config.indexer_types]
    assert any(shared) == bool(keys)


@pytest.mark.parametrize(
    ("case", "longest"),
    [("mistral within its window", 512), ("ministral3", 128), ("qwen3", 512), ("deepseek_v32", 512)],
)
def test_contexts_end_where_the_model_would_do_what_is_not_computed(case: str, longest: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(written_config(case)))
    found = read_architecture(tmp_path)
    assert found.max_position_embeddings == longest
    assert (found.computed_up_to is None) == (longest == 512)
