"""Shapes of random models that an implementation must compute correctly."""

from typing import Any

V2 = {
    "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "scoring_func": "softmax",
    "norm_topk_prob": False, "routed_scaling_factor": 1.7, "topk_method": "greedy",
}  # fmt: skip
YARN = {
    "type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1,
    "mscale": 0.7, "mscale_all_dim": 1.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "v3": {},
    "v3 without q_lora": {"q_lora_rank": None},
    "v3 one group": {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
    "v3 all groups kept": {"n_group": 2, "topk_group": 2, "norm_topk_prob": False},
    "v3 two shared experts": {"n_shared_experts": 2},
    "v3 all dense": {"first_k_dense_replace": 3},
    "v3 no dense": {"first_k_dense_replace": 0},
    "v3 yarn": {"rope_scaling": YARN},
    "v3 plain yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "v3 newer rope key": {"rope_parameters": {**YARN, "rope_type": "yarn", "rope_theta": 5000.0}},
    "v3 rope halves": {"rope_interleave": False},
    "v3 rope halves and bias": {"rope_interleave": False, "attention_bias": True},
    "v3 rope halves without q_lora": {"rope_interleave": False, "q_lora_rank": None},
    "v3 tied": {"tie_word_embeddings": True},
    "v3 bias": {"attention_bias": True},
    "v3 large epsilon": {"rms_norm_eps": 1e-2},
    "v2 lite": {**V2, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
    "v2 groups": {**V2, "topk_method": "group_limited_greedy"},
    "v2 yarn": {**V2, "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
}


WIDTHS: dict[str, Any] = {
    "hidden_size": 128, "q_lora_rank": 64, "kv_lora_rank": 96, "qk_rope_head_dim": 16, "qk_nope_head_dim": 48,
    "v_head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 80,
}  # fmt: skip

_LATENT = "q_lora_rank kv_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim rope_interleave".split()
_ROUTED = "scoring_func topk_method routed_scaling_factor n_routed_experts n_shared_experts n_group topk_group".split()
_DRAFTS = ["num_nextn_predict_layers"]
_EXPERTS = "norm_topk_prob first_k_dense_replace moe_intermediate_size num_experts_per_tok".split()
GLM_FLASH: dict[str, Any] = {
    "model_type": "glm4_moe_lite", "architectures": ["Glm4MoeLiteForCausalLM"], "hidden_size": 128,
    "num_hidden_layers": 3, "num_attention_heads": 10, "num_key_value_heads": 10, "q_lora_rank": 48, "kv_lora_rank": 32,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 24, "v_head_dim": 32, "intermediate_size": 640,
    "moe_intermediate_size": 96, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1,
    "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "partial_rotary_factor": 1.0,
}  # fmt: skip
"""GLM-4.7-Flash's keys with its ratios of widths, its draft layer included."""
YOUTU: dict[str, Any] = {
    "model_type": "youtu", "architectures": ["YoutuForCausalLM"], "tie_word_embeddings": True, "rope_theta": 1.6e6,
    "mlp_bias": False, **dict.fromkeys([*_ROUTED, *_EXPERTS, *_DRAFTS]),
}  # fmt: skip
"""Youtu-LLM's keys; those of experts are null, as if absent."""
LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 20, **dict.fromkeys([*_LATENT, *_ROUTED, *_EXPERTS, *_DRAFTS]),
}  # fmt: skip
QWEN2: dict[str, Any] = LLAMA | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
"""Qwen2.5's keys: queries, keys and values have biases."""
QWEN3: dict[str, Any] = LLAMA | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 20, "num_experts": 8, "mlp_only_layers": [1],
    **dict.fromkeys([*_LATENT, *_ROUTED, *_DRAFTS, "first_k_dense_replace"]),
}  # fmt: skip
GLM4_MOE: dict[str, Any] = {
    "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 20, "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5,
    **dict.fromkeys(_LATENT),
}  # fmt: skip
"""GLM-4.5's keys, its draft layer included."""
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 20, "num_local_experts": 8, "layer_types": ["sliding_attention", "full_attention"] * 4,
    "sliding_window": 24, "swiglu_limit": 2.0, "attention_bias": True,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 64,
    },
    **dict.fromkeys([*_LATENT, *_ROUTED, *_DRAFTS, "norm_topk_prob", "first_k_dense_replace", "moe_intermediate_size"]),
}  # fmt: skip
"""gpt-oss' keys; every other layer sees 24 tokens."""
SPARSE: dict[str, Any] = {
    "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "index_topk": 64, "index_n_heads": 2,
    "index_head_dim": 16,
}  # fmt: skip
"""DeepSeek-V3.2, which the native step computes in contexts of up to 64 tokens."""
CHOOSING: dict[str, Any] = SPARSE | {"index_topk": 16, "index_n_heads": 24}
"""The same, which chooses among more than 16 tokens; with so many heads hardly a score is zero."""
SHARED_CHOICE: dict[str, Any] = CHOOSING | {
    "model_type": "glm_moe_dsa", "architectures": ["GlmMoeDsaForCausalLM"], "indexer_types": ["full", "shared", "full"],
}  # fmt: skip
"""GLM-5, whose second layer reads what the first has chosen."""
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {}, "glm4_moe_lite": GLM_FLASH, "youtu": YOUTU, "llama": LLAMA, "qwen3_moe": QWEN3_MOE,
    "glm4_moe": GLM4_MOE, "gpt_oss": GPT_OSS,
}  # fmt: skip
"""Arguments of `write_random_checkpoint` for a small model of each kind that the native step computes."""
