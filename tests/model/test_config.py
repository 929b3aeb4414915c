"""Reading config.json: published shapes, defaults, refusals."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ModelError
from serving.model.architecture import Architecture, DenseShape, ExpertShape, GateShape, LatentShape
from serving.model.config import read_architecture
from tests.model.random_checkpoint import write_random_checkpoint

# As published with the checkpoints, keys that are not read left out.
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-06, "max_position_embeddings": 163840,
    "attention_bias": False, "tie_word_embeddings": False, "num_nextn_predict_layers": 1, "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
    "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
}  # fmt: skip
YARN: dict[str, Any] = DEEPSEEK_V3["rope_scaling"]
DEEPSEEK_V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "num_hidden_layers": 27,
    "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "n_shared_experts": 2, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
    "norm_topk_prob": False, "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-06, "max_position_embeddings": 163840,
    "attention_bias": False, "rope_theta": 10000,
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
    "torch_dtype": "bfloat16", "bos_token_id": 100000, "eos_token_id": 100001, "hidden_act": "silu",
}  # fmt: skip
KIMI_K2_CHANGES: dict[str, Any] = {
    "model_type": "kimi_k2", "vocab_size": 163840, "num_attention_heads": 64, "n_routed_experts": 384, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.827, "num_nextn_predict_layers": 0,
    "eos_token_id": 163586,
}  # fmt: skip


def read(folder: Path, raw: dict[str, object], generation: dict[str, object] | None = None) -> Architecture:
    (folder / "config.json").write_text(json.dumps(raw))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_architecture(folder)


def test_published_shapes(tmp_path: Path) -> None:
    config = read(tmp_path, DEEPSEEK_V3)
    shape = config.attention
    assert isinstance(shape, LatentShape)
    assert (shape.query_dim, shape.query_latent, shape.row.elements) == (192, 1536, 576)
    assert shape.scale == pytest.approx(192**-0.5 * (0.1 * 3.6888794541139363 + 1) ** 2)
    assert config.rope.amplitude == 1
    assert config.quantization.fp8_block == (128, 128)
    assert config.layers[2].feed == DenseShape(18432)
    assert isinstance(config.layers[3].feed, ExpertShape)
    assert len(config.drafts) == 1
    assert config.eos_token_ids == (1,)
    config = read(tmp_path, DEEPSEEK_V2_LITE)
    assert isinstance(config.attention, LatentShape)
    assert config.attention.query_latent is None
    assert config.experts is not None
    assert config.experts.gate == GateShape(
        sigmoid=False, choice_bias=False, groups=1, kept_groups=1, normalise=False, factor=1.0
    )
    assert config.experts.shared_width == 2 * 1408
    assert config.drafts == ()
    assert config.rope.interleave
    config = read(tmp_path, DEEPSEEK_V3 | KIMI_K2_CHANGES)
    assert config.experts is not None
    gate = config.experts.gate
    assert (config.experts.experts, gate.groups, gate.factor) == (384, 1, 2.827)


def test_other_keys_that_mean_the_same_and_where_end_tokens_come_from(tmp_path: Path) -> None:
    old = read(tmp_path, DEEPSEEK_V3)
    scaling = {**DEEPSEEK_V3["rope_scaling"], "rope_theta": 10000, "rope_type": "yarn"}
    raw = {k: v for k, v in DEEPSEEK_V3.items() if not k.startswith("rope")}
    assert read(tmp_path, raw | {"rope_parameters": scaling}) == old
    assert read(tmp_path, DEEPSEEK_V3 | {"torch_dtype": "float16"}).dtype == "float32"
    assert read(tmp_path, DEEPSEEK_V3 | {"dtype": "float32"}).dtype == "float32"
    assert read(tmp_path, DEEPSEEK_V3, {"eos_token_id": [1, 7]}).eos_token_ids == (1, 7)
    assert read(tmp_path, DEEPSEEK_V3, {}).eos_token_ids == (1,)
    assert read(tmp_path, DEEPSEEK_V3 | {"eos_token_id": None}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bert"}, "architecture 'bert' is not served"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ({"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method = 'greedy'"),
        ({"model_type": "deepseek_v2", "scoring_func": "softmax"}, "topk_method = 'noaux_tc'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_scaling": [1]}, "malformed key rope_scaling"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization 'awq'"),
        ({"quantization_config": 8}, "malformed key quantization_config"),
        ({"hidden_size": None}, "malformed key 'hidden_size'"),
        ({"hidden_size": "wide"}, "malformed key hidden_size = 'wide'"),
        ({"torch_dtype": "int4"}, "malformed key 'int4'"),
        ({"eos_token_id": "end"}, "malformed key eos_token_id"),
        ({"n_group": 7}, "cannot form 7 groups"),
        ({"topk_group": 9}, "9 are kept"),
        ({"n_group": 256, "topk_group": 256}, "at least two experts"),
        ({"num_experts_per_tok": 200}, "exceeds the 128 in reach"),
        ({"qk_rope_head_dim": 63}, "must be even"),
        ({"n_group": 0}, "n_group = 0 must be a whole number from 1"),
        ({"num_hidden_layers": 3.5}, "num_hidden_layers = 3.5 must be a whole number from 1"),
        ({"num_experts_per_tok": -1}, "num_experts_per_tok = -1 must be a whole number from 1"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers = -1 must be a whole number from 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings = 0 must be"),
        ({"vocab_size": math.inf}, "vocab_size = inf must be"),
        ({"vocab_size": 10**400}, "must be finite"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps = -1e-06 must be at least 0"),
        ({"routed_scaling_factor": math.nan}, "routed_scaling_factor = nan must be finite"),
        ({"rope_theta": 0}, "rope_theta = 0 must be above 1"),
        ({"rope_scaling": YARN | {"factor": 0}}, "factor = 0 must be above 0"),
        ({"rope_scaling": YARN | {"beta_fast": -1}}, "beta_fast = -1 must be above 0"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": -4}}, "original_max_position_embeddings = -4"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]}}, "two whole numbers above 0"),
    ],
)
def test_refusals_name_the_file_and_the_key(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, DEEPSEEK_V3 | change)
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_folder_file_and_bad_json(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist: give a folder"):
        read_architecture(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="is missing: give the folder"):
        read_architecture(tmp_path)
    for text, told in (("{", "cannot be read as JSON"), ("[" * 100_000, "as JSON"), ("[]", "not a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=told):
            read_architecture(tmp_path)


def test_import_needs_no_torch(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    code = (
        "import sys; from serving.model.config import read_architecture;"
        f"read_architecture({str(tmp_path)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
