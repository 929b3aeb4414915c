"""Which tensors a checkpoint of a given configuration has, by name and shape. Pure: no torch."""

from serving.model.config import Architecture

Shapes = dict[str, tuple[int, ...]]


def model_tensors(config: Architecture) -> Shapes:
    """Every tensor of the model without its draft layers."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_hidden_layers):
        shapes |= block_tensors(config, layer)
    return shapes


def mtp_tensors(config: Architecture) -> Shapes:
    """Every tensor that the draft layers must have; for those that they may have see `mtp_optional`."""
    shapes: Shapes = {}
    hidden = config.hidden_size
    for layer in mtp_layers(config):
        prefix = f"model.layers.{layer}."
        shapes |= block_tensors(config, layer)
        shapes |= {prefix + name: (hidden,) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
        shapes[prefix + "eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def mtp_optional(config: Architecture) -> Shapes:
    """Tensors that a draft layer may bring or share with the model."""
    shape = (config.vocab_size, config.hidden_size)
    names = ("embed_tokens.weight", "shared_head.head.weight")
    return {f"model.layers.{layer}.{name}": shape for layer in mtp_layers(config) for name in names}


def mtp_layers(config: Architecture) -> range:
    """Indices of the draft layers: they follow the model's own."""
    return range(config.num_hidden_layers, config.num_hidden_layers + config.num_nextn_predict_layers)


def block_tensors(config: Architecture, layer: int) -> Shapes:
    """Tensors of one transformer block."""
    prefix = f"model.layers.{layer}."
    hidden = config.hidden_size
    shapes: Shapes = {
        prefix + "input_layernorm.weight": (hidden,),
        prefix + "post_attention_layernorm.weight": (hidden,),
    }
    shapes |= _attention_tensors(config, prefix + "self_attn.")
    if config.is_dense(layer):
        return shapes | _mlp_tensors(prefix + "mlp.", hidden, config.intermediate_size)
    shapes[prefix + "mlp.gate.weight"] = (config.n_routed_experts, hidden)
    if config.topk_method == "noaux_tc":
        shapes[prefix + "mlp.gate.e_score_correction_bias"] = (config.n_routed_experts,)
    for expert in range(config.n_routed_experts):
        shapes |= _mlp_tensors(f"{prefix}mlp.experts.{expert}.", hidden, config.moe_intermediate_size)
    if config.n_shared_experts:
        width = config.moe_intermediate_size * config.n_shared_experts
        shapes |= _mlp_tensors(prefix + "mlp.shared_experts.", hidden, width)
    return shapes


def _attention_tensors(config: Architecture, prefix: str) -> Shapes:
    heads, hidden = config.num_attention_heads, config.hidden_size
    queries = heads * config.qk_head_dim
    shapes: Shapes = {
        "kv_a_proj_with_mqa.weight": (config.latent_dim, hidden),
        "kv_a_layernorm.weight": (config.kv_lora_rank,),
        "kv_b_proj.weight": (heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank),
        "o_proj.weight": (hidden, heads * config.v_head_dim),
    }
    if config.attention_bias:
        shapes |= {"kv_a_proj_with_mqa.bias": (config.latent_dim,), "o_proj.bias": (hidden,)}
    if config.q_lora_rank is None:
        shapes["q_proj.weight"] = (queries, hidden)
    else:
        shapes["q_a_proj.weight"] = (config.q_lora_rank, hidden)
        shapes["q_a_layernorm.weight"] = (config.q_lora_rank,)
        shapes["q_b_proj.weight"] = (queries, config.q_lora_rank)
        if config.attention_bias:
            shapes["q_a_proj.bias"] = (config.q_lora_rank,)
    return {prefix + name: shape for name, shape in shapes.items()}


def _mlp_tensors(prefix: str, hidden: int, width: int) -> Shapes:
    return {
        prefix + "gate_proj.weight": (width, hidden),
        prefix + "up_proj.weight": (width, hidden),
        prefix + "down_proj.weight": (hidden, width),
    }
