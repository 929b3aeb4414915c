"""Shapes of random models that an implementation must get right."""

from typing import Any

V2 = {
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.7,
    "topk_method": "greedy",
}
YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
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
    "hidden_size": 128,
    "q_lora_rank": 64,
    "kv_lora_rank": 96,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 48,
    "v_head_dim": 64,
    "intermediate_size": 256,
    "moe_intermediate_size": 80,
}
