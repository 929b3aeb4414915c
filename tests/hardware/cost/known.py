"""Configurations of published models, with the keys that the cost model reads. Source: their `config.json`."""

from typing import Any

from hardware.cost import ModelShape, shape_from_config
from serving.model.quantization import INT8_ACTIVATIONS, INT8_FORMAT, INT8_METHOD, INT8_WEIGHTS

_R1 = {
    "hidden_size": 7168, "num_hidden_layers": 61, "first_k_dense_replace": 3, "num_attention_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "moe_intermediate_size": 2048, "intermediate_size": 18432, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "vocab_size": 129280, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
_SPARSE = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}

INT8 = {
    "quant_method": INT8_METHOD, "format": INT8_FORMAT,
    "config_groups": {
        "all": {"targets": ["Linear"], "weights": INT8_WEIGHTS, "input_activations": INT8_ACTIVATIONS}
    },
}  # fmt: skip

KNOWN: dict[str, dict[str, Any]] = {
    "deepseek-r1": {"model_type": "deepseek_v3", **_R1, "rope_theta": 10000},
    "deepseek-v3.2": {"model_type": "deepseek_v32", **_R1, **_SPARSE},
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "first_k_dense_replace": 1,
        "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "moe_intermediate_size": 1408, "intermediate_size": 10944,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "vocab_size": 102400,
    },
    "kimi-k2": {
        "model_type": "kimi_k2", **_R1, "num_attention_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
        "vocab_size": 163840, "num_nextn_predict_layers": 0,
    },
    "glm-4.7-flash": {
        "model_type": "glm4_moe_lite", "hidden_size": 2048, "num_hidden_layers": 47,
        "mlp_layer_types": ["dense"] + ["sparse"] * 46, "num_attention_heads": 20, "q_lora_rank": 768,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "moe_intermediate_size": 1536, "intermediate_size": 10240, "n_routed_experts": 64, "num_experts_per_tok": 4,
        "n_shared_experts": 1, "vocab_size": 154880, "num_nextn_predict_layers": 1,
    },
    "glm-5": {
        "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
        "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "moe_intermediate_size": 2048, "intermediate_size": 12288, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "vocab_size": 154880, "num_nextn_predict_layers": 1, **_SPARSE,
    },
    "youtu-llm-2b": {
        "model_type": "youtu", "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 16,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "intermediate_size": 6144, "vocab_size": 128256,
    },
    "llama-3.1-8b": {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    },
    "llama-3.1-70b": {
        "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "tie_word_embeddings": False,
    },
    "mistral-7b-v0.1": {
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
    "ministral-3-8b": {
        "model_type": "ministral3", "hidden_size": 4096, "num_hidden_layers": 34, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 131072,
        "sliding_window": None, "tie_word_embeddings": False,
    },
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    "smollm3-3b": {
        "model_type": "smollm3", "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 11008, "vocab_size": 128256, "use_sliding_window": False,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
        "use_sliding_window": False, "sliding_window": 131072,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "tie_word_embeddings": False,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "tie_word_embeddings": False,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 32,
        "num_experts_per_tok": 4, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "vocab_size": 201088, "tie_word_embeddings": False,
    },
    "glm-4.5": {
        "model_type": "glm4_moe", "hidden_size": 5120, "num_hidden_layers": 92, "first_k_dense_replace": 3,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
        "moe_intermediate_size": 1536, "n_routed_experts": 160, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "vocab_size": 151552, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    },
    "glm-4.5-air": {
        "model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "first_k_dense_replace": 1,
        "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944,
        "moe_intermediate_size": 1408, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "vocab_size": 151552, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    },
}  # fmt: skip


KNOWN = {name: {"quantization_config": INT8, **config} for name, config in KNOWN.items()}
"""All in W8A8, as Ascends serve them."""


def known(name: str) -> ModelShape:
    """Shape of a published model."""
    return shape_from_config(KNOWN[name], name)
