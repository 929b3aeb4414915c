"""Small random checkpoints of each family, written by transformers itself: its names, its keys, its numbers."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

_LATENT: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48,
    "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "routed_scaling_factor": 1.8,
}  # fmt: skip
_INDEXER: dict[str, Any] = {"index_topk": 64, "index_head_dim": 16, "index_n_heads": 2, "first_k_dense_replace": 1}
_CHOOSING: dict[str, Any] = _INDEXER | {"index_topk": 16, "index_n_heads": 24}
"""So many heads that scores of zero, whose order transformers leaves open, do not occur."""
_GROUPED: dict[str, Any] = {
    "hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20,
    "intermediate_size": 88, "rms_norm_eps": 1e-5,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
_MINISTRAL3 = {
    "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
_GPT_OSS: dict[str, Any] = {
    "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 9, "swiglu_limit": 0.8,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 24,
    },
}  # fmt: skip

CASES: dict[str, dict[str, Any]] = {
    "glm4_moe_lite": _LATENT | _EXPERTS | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "glm4_moe_lite direct": _LATENT
    | _EXPERTS
    | {"mlp_layer_types": ["sparse", "dense", "sparse"], "q_lora_rank": None},
    "youtu": _LATENT,
    "youtu halves": _LATENT | {"rope_interleave": False, "tie_word_embeddings": False},
    "deepseek_v32": _LATENT | _EXPERTS | _INDEXER | {"n_group": 4, "topk_group": 2},
    "glm_moe_dsa": _LATENT | _EXPERTS | _INDEXER,
    "llama": _GROUPED,
    "llama 3.1": _GROUPED | {"rope_parameters": _LLAMA3, "tie_word_embeddings": True},
    "llama linear, biases": _GROUPED
    | {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}, "attention_bias": True},
    "llama one KV head": _GROUPED | {"num_key_value_heads": 1, "num_attention_heads": 5},
    "llama without groups": _GROUPED | {"num_key_value_heads": 6},
    "mistral": _GROUPED | {"sliding_window": None},
    "mistral within its window": _GROUPED | {"sliding_window": 64},
    "mistral beyond its window": _GROUPED | {"sliding_window": 11},
    "ministral3": _GROUPED | {"rope_parameters": _MINISTRAL3},
    "smollm3": {key: value for key, value in _GROUPED.items() if key != "head_dim"},
    "qwen2": {key: value for key, value in _GROUPED.items() if key != "head_dim"},
    "qwen3": _GROUPED,
    "qwen3_moe": _GROUPED
    | {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3, "mlp_only_layers": [1]},
    "qwen3_moe normalised": _GROUPED
    | {"moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}
    | {"decoder_sparse_step": 2},
    "gpt_oss": _GROUPED | _GPT_OSS,
    "gpt_oss within its window": _GROUPED | _GPT_OSS | {"sliding_window": 64, "num_experts_per_tok": 1},
    "gpt_oss one of three windowed": _GROUPED
    | _GPT_OSS
    | {"layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"], "head_dim": 32},
    "glm4_moe": _GROUPED | _EXPERTS | {"use_qk_norm": True, "attention_bias": True, "num_mtp_layers": 0},
}
"""Configurations by family; the words after the family's name state the special feature."""

CHOOSING_CASES: dict[str, dict[str, Any]] = {
    "deepseek_v32 beyond index_topk": _LATENT | _EXPERTS | _CHOOSING | {"n_group": 4, "topk_group": 2},
    "deepseek_v32 beyond an odd index_topk": _LATENT
    | _EXPERTS
    | _CHOOSING
    | {"index_topk": 13, "n_group": 1, "topk_group": 1},
    "deepseek_v32 beyond index_topk, yarn": _LATENT
    | _EXPERTS
    | _CHOOSING
    | {"n_group": 4, "topk_group": 2, "rope_parameters": _YARN},
    "glm_moe_dsa beyond index_topk": _LATENT | _EXPERTS | _CHOOSING,
    "glm_moe_dsa shared": _LATENT | _EXPERTS | _CHOOSING | {"indexer_types": ["full", "shared", "full"]},
}
"""Those whose attention reads chosen tokens only, beyond so few that tests have longer contexts: not native."""


def family_config(case: str, **changes: Any) -> Any:
    """Transformers' configuration of a case, whose class depends on the family; with other keys."""
    keys = {"vocab_size": 320, "max_position_embeddings": 512, **(CASES | CHOOSING_CASES)[case], **changes}
    return AutoConfig.for_model(case.split(" ")[0], **keys, bos_token_id=1, eos_token_id=2, pad_token_id=0)


def written_config(case: str) -> dict[str, Any]:
    """The `config.json` that transformers writes for it."""
    found: dict[str, Any] = json.loads(family_config(case).to_json_string())
    return found


ONE_OF_EACH = (
    *("glm4_moe_lite", "youtu halves", "deepseek_v32", "llama 3.1", "mistral beyond its window", "ministral3"),
    *("smollm3", "qwen2", "qwen3_moe normalised", "gpt_oss", "glm4_moe"),
)
"""Cases of one form of attention each."""


def write_family(folder: Path, case: str, seed: int = 0, **changes: Any) -> Any:
    """Write a case's checkpoint. Returns: transformers' model of it, in float32, whose parts are typed in part."""
    config = family_config(case, **changes)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not name.endswith("inv_freq"):
                tensor.copy_(_values(name, tensor, generator))
    model.save_pretrained(folder)
    return model.eval()


def _values(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Values at which every part matters: activations of unit size, distinct norms and biases."""
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.ndim == 1:
        return 1 + 0.2 * noise if "norm" in name else 0.2 * noise
    if "embed" in name:
        return noise
    gain = 3.0 if "lm_head" in name else 2.0 if "q_" in name else 1.0
    return gain * noise / tensor.shape[-1] ** 0.5
