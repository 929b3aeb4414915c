"""Configurations of models as their publishers write them."""

from typing import Any

_HF: dict[str, Any] = {
    "architectures": ["ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0", "use_cache": True,
}  # fmt: skip
LLAMA_32_1B: dict[str, Any] = _HF | {
    "model_type": "llama", "attention_bias": False, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
    "mlp_bias": False, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "vocab_size": 128256,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
SMOLLM2_135M: dict[str, Any] = _HF | {
    "model_type": "llama", "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192,
    "mlp_bias": False, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
    "rope_theta": 100000, "tie_word_embeddings": True, "vocab_size": 49152,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
}  # fmt: skip
QWEN25_05B: dict[str, Any] = _HF | {
    "model_type": "qwen2", "bos_token_id": 151643, "eos_token_id": 151645, "hidden_size": 896,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_06B: dict[str, Any] = _HF | {
    "model_type": "qwen3", "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
    "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = QWEN3_06B | {
    "model_type": "qwen3_moe", "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
    "max_window_layers": 48, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}  # fmt: skip
SMOLLM3_3B: dict[str, Any] = _HF | {
    "model_type": "smollm3", "attention_bias": False, "bos_token_id": None, "eos_token_id": 128012,
    "hidden_size": 2048, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False,
    "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "num_attention_heads": 16,
    "num_hidden_layers": 36, "num_key_value_heads": 4, "pad_token_id": 128004, "pretraining_tp": 2,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
    "use_sliding_window": False, "vocab_size": 128256,
}  # fmt: skip
GLM_45_AIR: dict[str, Any] = _HF | {
    "model_type": "glm4_moe", "attention_bias": True, "eos_token_id": [151329, 151336, 151338],
    "first_k_dense_replace": 1, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 10944,
    "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 96, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
    "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "topk_group": 1, "use_qk_norm": False,
    "vocab_size": 151552,
}  # fmt: skip
GLM_47_FLASH: dict[str, Any] = _HF | {
    "model_type": "glm4_moe_lite", "attention_bias": False, "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10240, "kv_lora_rank": 512,
    "max_position_embeddings": 202752, "moe_intermediate_size": 1536, "n_group": 1, "n_routed_experts": 64,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 20, "num_experts_per_tok": 4,
    "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "pad_token_id": 154820,
    "partial_rotary_factor": 1.0, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256, "vocab_size": 154880,
}  # fmt: skip
GPT_OSS_20B: dict[str, Any] = _HF | {
    "model_type": "gpt_oss", "attention_bias": True, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64,
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
    "num_local_experts": 32, "output_router_logits": False, "pad_token_id": 199999,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "swiglu_limit": 7.0, "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
DEEPSEEK_V32: dict[str, Any] = _HF | {
    "model_type": "deepseek_v32", "attention_bias": False, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_size": 7168, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "rope_scaling": {
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
}  # fmt: skip
PUBLISHED = {
    "DeepSeek-V3.2": DEEPSEEK_V32,
    "Llama-3.2-1B": LLAMA_32_1B, "SmolLM2-135M": SMOLLM2_135M, "Qwen2.5-0.5B": QWEN25_05B, "Qwen3-0.6B": QWEN3_06B,
    "Qwen3-30B-A3B": QWEN3_30B_A3B, "SmolLM3-3B": SMOLLM3_3B, "GLM-4.5-Air": GLM_45_AIR, "GLM-4.7-Flash": GLM_47_FLASH,
    "gpt-oss-20b": GPT_OSS_20B,
}  # fmt: skip
