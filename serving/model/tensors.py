"""Tensors of a checkpoint of a given architecture, by name and shape. Pure; imports no torch."""

from serving.model.architecture import (
    Architecture,
    AttentionShape,
    DenseShape,
    GroupedShape,
    IndexerShape,
    LatentShape,
)

Shapes = dict[str, tuple[int, ...]]

INDEXER = "indexer."
"""Prefix of the names of an indexer's tensors, after that of its attention."""


def model_tensors(config: Architecture) -> Shapes:
    """Every tensor of the model, except those of draft layers."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for layer in range(len(config.layers)):
        shapes |= block_tensors(config, layer)
    return shapes


def mtp_tensors(config: Architecture) -> Shapes:
    """Every tensor that the draft layers must have; for optional ones see `mtp_optional`."""
    shapes: Shapes = {}
    hidden = config.hidden_size
    for layer in mtp_layers(config):
        prefix = f"model.layers.{layer}."
        shapes |= block_tensors(config, layer)
        shapes |= {prefix + name: (hidden,) for name in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")}
        shapes[prefix + "eh_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def mtp_optional(config: Architecture) -> Shapes:
    """Tensors that a draft layer may have or share with the model."""
    shape = (config.vocab_size, config.hidden_size)
    names = ("embed_tokens.weight", "shared_head.head.weight")
    return {f"model.layers.{layer}.{name}": shape for layer in mtp_layers(config) for name in names}


def mtp_layers(config: Architecture) -> range:
    """Indices of the draft layers: they follow the model's own."""
    return range(len(config.layers), len(config.layers) + len(config.drafts))


def block_tensors(config: Architecture, layer: int) -> Shapes:
    """Tensors of one transformer block, of the model or of a draft layer."""
    prefix, shape = f"model.layers.{layer}.", config.layer(layer)
    hidden = config.hidden_size
    shapes: Shapes = {
        prefix + "input_layernorm.weight": (hidden,),
        prefix + "post_attention_layernorm.weight": (hidden,),
    }
    shapes |= _attention_tensors(shape.attention, prefix + "self_attn.", hidden)
    feed = shape.feed
    if isinstance(feed, DenseShape):
        return shapes | _mlp_tensors(prefix + "mlp.", hidden, feed.width)
    shapes[prefix + "mlp.gate.weight"] = (feed.experts, hidden)
    if feed.gate.choice_bias:
        shapes[prefix + "mlp.gate.e_score_correction_bias"] = (feed.experts,)
    if feed.gate.bias:
        shapes[prefix + "mlp.gate.bias"] = (feed.experts,)
    for expert in range(feed.experts):
        shapes |= _mlp_tensors(f"{prefix}mlp.experts.{expert}.", hidden, feed.width, bias=feed.bias)
    if feed.shared_width:
        shapes |= _mlp_tensors(prefix + "mlp.shared_experts.", hidden, feed.shared_width)
    return shapes


def _attention_tensors(shape: AttentionShape, prefix: str, hidden: int) -> Shapes:
    shapes = _latent(shape, hidden) if isinstance(shape, LatentShape) else _grouped(shape, hidden)
    return {prefix + name: one for name, one in shapes.items()}


def _latent(shape: LatentShape, hidden: int) -> Shapes:
    queries, entry = shape.heads * shape.query_dim, shape.row.attended
    shapes: Shapes = {
        "kv_a_proj_with_mqa.weight": (entry, hidden),
        "kv_a_layernorm.weight": (shape.latent,),
        "kv_b_proj.weight": (shape.heads * (shape.nope_dim + shape.value_dim), shape.latent),
        "o_proj.weight": (hidden, shape.heads * shape.value_dim),
    }
    if shape.bias:
        shapes |= {"kv_a_proj_with_mqa.bias": (entry,), "o_proj.bias": (hidden,)}
    if shape.query_latent is None:
        shapes["q_proj.weight"] = (queries, hidden)
    else:
        shapes["q_a_proj.weight"] = (shape.query_latent, hidden)
        shapes["q_a_layernorm.weight"] = (shape.query_latent,)
        shapes["q_b_proj.weight"] = (queries, shape.query_latent)
        if shape.bias:
            shapes["q_a_proj.bias"] = (shape.query_latent,)
        if shape.indexer is not None and not shape.indexer.shared:
            shapes |= _indexer(shape.indexer, shape.query_latent, hidden)
    return shapes


def _indexer(shape: IndexerShape, query_latent: int, hidden: int) -> Shapes:
    return {
        INDEXER + "wq_b.weight": (shape.heads * shape.head_dim, query_latent),
        INDEXER + "wk.weight": (shape.head_dim, hidden),
        INDEXER + "k_norm.weight": (shape.head_dim,),
        INDEXER + "k_norm.bias": (shape.head_dim,),
        INDEXER + "weights_proj.weight": (shape.heads, hidden),
    }


def _grouped(shape: GroupedShape, hidden: int) -> Shapes:
    widths = {"q": shape.heads * shape.head_dim, "k": shape.kv_heads * shape.head_dim}
    widths["v"] = widths["k"]
    shapes: Shapes = {f"{name}_proj.weight": (width, hidden) for name, width in widths.items()}
    shapes["o_proj.weight"] = (hidden, widths["q"])
    if shape.input_bias:
        shapes |= {f"{name}_proj.bias": (width,) for name, width in widths.items()}
    if shape.output_bias:
        shapes["o_proj.bias"] = (hidden,)
    if shape.head_norm:
        shapes |= {"q_norm.weight": (shape.head_dim,), "k_norm.weight": (shape.head_dim,)}
    if shape.sinks:
        shapes["sinks"] = (shape.heads,)
    return shapes


def _mlp_tensors(prefix: str, hidden: int, width: int, *, bias: bool = False) -> Shapes:
    sizes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    shapes: Shapes = {f"{prefix}{name}.weight": size for name, size in sizes.items()}
    if bias:
        shapes |= {f"{prefix}{name}.bias": size[:1] for name, size in sizes.items()}
    return shapes
