"""Architectures with multi-head latent attention: DeepSeek-V2, V3, V3.2, Kimi-K2, GLM-4.7-Flash, GLM-5, Youtu."""

from dataclasses import replace

from serving.errors import ModelError
from serving.model.architecture import (
    Architecture,
    DenseShape,
    ExpertShape,
    GateShape,
    IndexerShape,
    LatentShape,
    LayerShape,
)
from serving.model.config_keys import ConfigKeys
from serving.model.families.shared_keys import architecture, checked, feeds, leading, typed, v3_experts
from serving.model.rope_config import RopeConfig, read_rope

# Configuration keys of multi-head latent attention, in DeepSeek's form, which other families share.


def latent_attention(keys: ConfigKeys, *, interleave: bool | None = None) -> tuple[LatentShape, RopeConfig]:
    """Attention of every layer, and its positions.

    Args:
        interleave: whether rotating pairs are adjacent in the checkpoint; None = as in `rope_interleave`.
    Raises: KeyError, TypeError or ModelError for a missing, malformed or unsupported key.
    """
    asked = keys.flag("rope_interleave", True)
    neighbours = asked if interleave is None else interleave
    rope = read_rope(keys.raw, keys.whole("max_position_embeddings"), interleave=neighbours)
    keys.known("rope_theta", "rope_scaling", "rope_parameters", "num_key_value_heads", "qk_head_dim", "head_dim")
    rotated, plain = keys.whole("qk_rope_head_dim"), keys.whole("qk_nope_head_dim")
    if rotated % 2:
        raise ModelError(f"qk_rope_head_dim = {rotated} must be even")
    shape = LatentShape(
        heads=keys.whole("num_attention_heads"),
        query_latent=keys.optional("q_lora_rank"),
        latent=keys.whole("kv_lora_rank"),
        nope_dim=plain,
        rope_dim=rotated,
        value_dim=keys.whole("v_head_dim"),
        scale=float((plain + rotated) ** -0.5 * rope.score_factor),
        bias=keys.flag("attention_bias", False),
    )
    return shape, rope


# DeepSeek-V2 and V3 (also R1 and V3.1), and Kimi-K2, which is V3 with other sizes.


def read_v3(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V3 and Kimi-K2. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys)
    return _model(keys, attention, rope, v3_experts(keys))


def read_v2(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V2: softmax scores, no bias, a group counts as its best expert. Raises: as `read_v3`."""
    attention, rope = latent_attention(keys, interleave=True)
    keys.among("scoring_func", "softmax")
    keys.among("topk_method", "greedy", "group_limited_greedy")
    keys.among("moe_layer_freq", 1)
    keys.among("mlp_bias", False)
    width, groups, kept = keys.whole("moe_intermediate_size"), keys.whole("n_group", 1), keys.whole("topk_group", 1)
    in_groups = keys.raw.get("topk_method") == "group_limited_greedy"
    gate = GateShape(
        sigmoid=False,
        choice_bias=False,
        groups=groups if in_groups else 1,
        kept_groups=kept if in_groups else 1,
        normalise=keys.flag("norm_topk_prob", False),
        factor=keys.number("routed_scaling_factor", 1.0),
    )
    experts = ExpertShape(
        experts=keys.whole("n_routed_experts"),
        per_token=keys.whole("num_experts_per_tok"),
        width=width,
        shared_width=keys.whole("n_shared_experts", 0, least=0) * width,
        gate=gate,
    )
    return _model(keys, attention, rope, checked(experts))


def _model(keys: ConfigKeys, attention: LatentShape, rope: RopeConfig, experts: ExpertShape) -> Architecture:
    count = keys.layers()
    dense = leading(count, keys.whole("first_k_dense_replace", 0, least=0))
    layers = tuple(LayerShape(attention, feed) for feed in feeds(keys, count, experts, dense))
    # The checkpoints' name and Hugging Face's.
    drafts = keys.layers("num_nextn_predict_layers", keys.layers("num_mtp_layers", 0, least=0), least=0)
    return architecture(keys, layers, rope, (LayerShape(attention, experts),) * drafts)


# DeepSeek-V3.2 and GLM-5: DeepSeek-V3's block with attention to the `index_topk` tokens that an indexer chooses.
#
# GLM-5's later layers may share the choice of an earlier one (`indexer_types`).


def read_v32(keys: ConfigKeys) -> Architecture:
    """DeepSeek-V3.2. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys, interleave=True)
    indexer = _indexer(keys, attention, heads=64, interleave=False)
    return _sparse_model(keys, attention, rope, indexer, [False] * keys.layers())


def read_glm5(keys: ConfigKeys) -> Architecture:
    """GLM-5. Raises: as `read_v32`."""
    attention, rope = latent_attention(keys, interleave=True)
    indexer = _indexer(keys, attention, heads=32, interleave=True)
    return _sparse_model(keys, attention, rope, indexer, _sharing(keys, keys.layers()))


def _sparse_model(
    keys: ConfigKeys, attention: LatentShape, rope: RopeConfig, indexer: IndexerShape, sharing: list[bool]
) -> Architecture:
    count, experts = keys.layers(), v3_experts(keys)
    dense = typed(keys, count, leading(count, keys.whole("first_k_dense_replace", 3, least=0)))
    keys.names("layer_types", count, ("indexed_attention", "deepseek_sparse_attention"))
    own, shared = (replace(attention, indexer=replace(indexer, shared=one)) for one in (False, True))
    layers = tuple(
        LayerShape(shared if takes else own, feed)
        for takes, feed in zip(sharing, feeds(keys, count, experts, dense), strict=True)
    )
    drafts = keys.layers("num_nextn_predict_layers", 0, least=0)
    return architecture(keys, layers, rope, (LayerShape(own, experts),) * drafts)


def _indexer(keys: ConfigKeys, attention: LatentShape, *, heads: int, interleave: bool) -> IndexerShape:
    """Args: heads, interleave: the family's; `heads` is the default if the configuration has none."""
    keys.among("indexer_rope_interleave", interleave)
    width = keys.whole("index_head_dim", 128)
    if attention.query_latent is None:
        raise ModelError("q_lora_rank is missing: an indexer's queries come from that latent")
    if attention.rope_dim > width:
        raise ModelError(f"qk_rope_head_dim = {attention.rope_dim} exceeds index_head_dim = {width}")
    return IndexerShape(
        heads=keys.whole("index_n_heads", heads),
        head_dim=width,
        rope_dim=attention.rope_dim,
        interleave=interleave,
        top_k=keys.whole("index_topk", 2048),
    )


def _sharing(keys: ConfigKeys, count: int) -> list[bool]:
    """Which of `count` layers reuse an earlier one's choice: by name, else by a pattern, else by an interval."""
    kinds = keys.names("indexer_types", count, ("full", "shared"))
    pattern = keys.raw.get("index_topk_pattern")
    step = keys.whole("index_topk_freq", 1, least=0)
    offset = keys.whole("index_skip_topk_offset", 2, least=0)
    keys.known("index_topk_pattern")
    if kinds is not None:
        found = [kind == "shared" for kind in kinds]
    elif pattern is not None:
        if not isinstance(pattern, str) or len(pattern) < count or set(pattern) - {"F", "S"}:
            raise ModelError(f"index_topk_pattern = {str(pattern)[:40]!r} is not one F or S for each of {count} layers")
        found = [one == "S" for one in pattern[:count]]
    else:
        found = [max(layer - offset + 1, 0) % max(step, 1) != 0 for layer in range(count)]
    if found[0]:
        raise ModelError("the first layer's indexer is shared, and no layer before it has one")
    return found


# GLM-4.7-Flash: DeepSeek-V3's block; dense layers are listed one by one.


def read_glm4_moe_lite(keys: ConfigKeys) -> Architecture:
    """GLM-4.7-Flash. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys)
    count, experts = keys.layers(), v3_experts(keys)
    dense = typed(keys, count, leading(count, keys.whole("first_k_dense_replace", 1, least=0)))
    layers = tuple(LayerShape(attention, feed) for feed in feeds(keys, count, experts, dense))
    drafts = keys.layers("num_nextn_predict_layers", 0, least=0)
    keys.among("partial_rotary_factor", 1, 1.0)
    return architecture(keys, layers, rope, (LayerShape(attention, experts),) * drafts, norm_eps=1e-5)


# Youtu-LLM (2 B): latent attention, and one feed-forward network in every layer.


def read_youtu(keys: ConfigKeys) -> Architecture:
    """Youtu-LLM. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    attention, rope = latent_attention(keys)
    keys.among("mlp_bias", False)
    layer = LayerShape(attention, DenseShape(keys.whole("intermediate_size")))
    return architecture(keys, (layer,) * keys.layers(), rope, tied=True)
