"""Architectures with grouped-query attention: Llama, Mistral, Qwen, SmolLM3, GLM-4.5, gpt-oss."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from serving.errors import ModelError
from serving.model.architecture import (
    Architecture,
    ClampedGate,
    ContextLimit,
    DenseShape,
    ExpertShape,
    GateShape,
    GroupedShape,
    LayerShape,
)
from serving.model.config_keys import ConfigKeys, number, whole
from serving.model.families.shared_keys import architecture, checked, feeds, leading, v3_experts
from serving.model.rope_config import RopeConfig, read_rope

# Configuration keys of grouped-query attention, in Llama's form, which other families share.

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers in `layer_types`."""


class Variant(NamedTuple):
    """Differences of a family's grouped attention from Llama's.

    Args:
        input_bias, output_bias: of the projections; None = as in `attention_bias`.
        head_norm: whether each query and key head is normalised.
        theta: default base of the wavelengths.
        head_dim: default width of a head; 0 = hidden size / heads.
        rotated: default share of a head that rotates.
        still: layers without positions.
        sinks: whether heads have sinks.
        windows: whether windows are computed, in layers that `layer_types` names, or in all; otherwise contexts are
            limited to the window.
    """

    input_bias: bool | None = None
    output_bias: bool | None = None
    head_norm: bool = False
    theta: float = 10000.0
    head_dim: int = 0
    rotated: float = 1.0
    still: Sequence[int] = ()
    sinks: bool = False
    windows: bool = False


class Grouped(NamedTuple):
    """Attention of a model.

    Args:
        layers: attention of each layer.
        limit: longest context that is computed, if some layers have a window, or queries are scaled.
    """

    layers: tuple[GroupedShape, ...]
    rope: RopeConfig
    limit: ContextLimit | None


def grouped_attention(keys: ConfigKeys, count: int, variant: Variant) -> Grouped:
    """Attention of each of `count` layers, and its positions.

    Raises: KeyError, TypeError or ModelError for a missing, malformed or unsupported key.
    """
    heads, hidden = keys.whole("num_attention_heads"), keys.whole("hidden_size")
    kv_heads = keys.whole("num_key_value_heads", heads)
    width = keys.whole("head_dim", variant.head_dim or max(1, hidden // heads))
    if heads % kv_heads:
        raise ModelError(f"{heads} heads cannot share {kv_heads} KV heads evenly")
    rope = read_rope(keys.raw, keys.whole("max_position_embeddings"), interleave=False, theta=variant.theta)
    keys.known("rope_theta", "rope_scaling", "rope_parameters")
    bias = keys.flag("attention_bias", False)
    keys.among("rope_interleaved", False)
    turning = GroupedShape(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        rope_dim=_rotated(keys, width, variant.rotated),
        scale=width**-0.5,
        input_bias=bias if variant.input_bias is None else variant.input_bias,
        output_bias=bias if variant.output_bias is None else variant.output_bias,
        head_norm=variant.head_norm,
        sinks=variant.sinks,
    )
    still = replace(turning, rope_dim=0)
    kinds = keys.names("layer_types", count, (FULL, SLIDING))
    layers = tuple(still if layer in variant.still else turning for layer in range(count))
    if variant.windows:
        window = keys.optional("sliding_window")
        sliding = [kind == SLIDING for kind in kinds] if kinds is not None else [True] * count
        layers = tuple(
            replace(one, window=window) if slides else one for one, slides in zip(layers, sliding, strict=True)
        )
    return Grouped(layers, rope, _limit(keys, None if variant.windows else _window(keys, kinds, count)))


def _rotated(keys: ConfigKeys, width: int, share: float) -> int:
    """Elements of a head that rotate."""
    share = keys.number("partial_rotary_factor", share, least=0)
    nested = keys.raw.get("rope_parameters")
    if isinstance(nested, Mapping):
        share = number(nested, "partial_rotary_factor", share, least=0)
    rotated = int(width * share)
    if not 0 < rotated <= width or rotated % 2:
        raise ModelError(
            f"{rotated} of a head's {width} elements would rotate: it must be an even number, at most all of them"
        )
    return rotated


def _limit(keys: ConfigKeys, window: int | None) -> ContextLimit | None:
    """The longest context that is computed: beyond it, a window applies, or queries are scaled by their position."""
    limits = []
    if window is not None:
        limits.append(ContextLimit(window, "some layers see a window only"))
    scaling = keys.raw.get("rope_parameters")
    if isinstance(scaling, Mapping) and scaling.get("llama_4_scaling_beta"):
        trained = whole(scaling, "original_max_position_embeddings")
        limits.append(ContextLimit(trained, "queries are scaled by their position"))
    return min(limits, key=lambda limit: limit.tokens, default=None)


def _window(keys: ConfigKeys, kinds: list[str] | None, count: int) -> int | None:
    """Window of the layers that have one; None if there are none."""
    window = keys.optional("sliding_window")
    used = keys.flag("use_sliding_window", True)
    first = keys.whole("max_window_layers", 0, least=0)
    if kinds is not None:
        return window if SLIDING in kinds else None
    return window if used and first < count else None


# Models with grouped attention and one feed-forward network in every layer.


def dense_model(keys: ConfigKeys, variant: Variant, *, tied: bool = False) -> Architecture:
    """The architecture of a model with grouped attention and one feed-forward network per layer, from config.json.

    Args:
        tied: default for whether the head shares the embedding.
    Raises: KeyError, TypeError or ModelError: see `architecture`.
    """
    keys.among("mlp_bias", False)
    attention = grouped_attention(keys, keys.layers(), variant)
    feed = DenseShape(keys.whole("intermediate_size"))
    layers = tuple(LayerShape(one, feed) for one in attention.layers)
    return architecture(keys, layers, attention.rope, tied=tied, limit=attention.limit)


# Llama 2 and 3, Mistral, and models with their `model_type`: grouped attention, one feed-forward network per layer.


def read_llama(keys: ConfigKeys) -> Architecture:
    """Llama or Ministral. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    return dense_model(keys, Variant())


def read_mistral(keys: ConfigKeys) -> Architecture:
    """Mistral, whose first version has a window in every layer. Raises: as `read_llama`."""
    return dense_model(keys, Variant(windows=True))


# Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values. Qwen3: no bias, but normalised heads.

_QWEN3 = Variant(head_norm=True, head_dim=128)


def read_qwen2(keys: ConfigKeys) -> Architecture:
    """Qwen2 or Qwen2.5. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    return dense_model(keys, Variant(input_bias=True, output_bias=False))


def read_qwen3(keys: ConfigKeys) -> Architecture:
    """Qwen3. Raises: as `read_qwen2`."""
    return dense_model(keys, _QWEN3)


def read_qwen3_moe(keys: ConfigKeys) -> Architecture:
    """Qwen3 with experts: softmax scores, no groups, no shared network. Raises: as `read_qwen2`."""
    count = keys.layers()
    attention = grouped_attention(keys, count, _QWEN3)
    gate = GateShape(
        sigmoid=False,
        choice_bias=False,
        groups=1,
        kept_groups=1,
        normalise=keys.flag("norm_topk_prob", False),
        factor=1.0,
    )
    experts = ExpertShape(
        experts=keys.whole("num_experts", keys.optional("num_local_experts")),  # Hugging Face's name since version 5
        per_token=keys.whole("num_experts_per_tok"),
        width=keys.whole("moe_intermediate_size"),
        shared_width=0,
        gate=gate,
    )
    step, named = keys.whole("decoder_sparse_step", 1), keys.whole_list("mlp_only_layers")
    dense = [layer in named or (layer + 1) % step > 0 for layer in range(count)]
    layers = zip(attention.layers, feeds(keys, count, checked(experts), dense), strict=True)
    return architecture(keys, tuple(LayerShape(*one) for one in layers), attention.rope, limit=attention.limit)


# SmolLM3: Llama without positions in every fourth layer.


def read_smollm3(keys: ConfigKeys) -> Architecture:
    """SmolLM3. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    count, interval = keys.layers(), keys.whole("no_rope_layer_interval", 4)
    turns = keys.whole_list("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(count)]
    still = [layer for layer, one in enumerate(turns) if not one]
    return dense_model(keys, Variant(theta=2_000_000.0, still=still), tied=True)


# GLM-4.5 and 4.6: grouped attention with heads that rotate by half, and DeepSeek-V3's experts.


def read_glm4_moe(keys: ConfigKeys) -> Architecture:
    """GLM-4.5 or 4.6. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    count, experts = keys.layers(), v3_experts(keys)
    variant = Variant(output_bias=False, head_norm=keys.flag("use_qk_norm", False), rotated=0.5)
    attention = grouped_attention(keys, count, variant)
    dense = leading(count, keys.whole("first_k_dense_replace", 1, least=0))
    layers = zip(attention.layers, feeds(keys, count, experts, dense), strict=True)
    drafts = keys.layers("num_nextn_predict_layers", keys.layers("num_mtp_layers", 0, least=0), least=0)
    draft = LayerShape(attention.layers[-1], experts)
    return architecture(
        keys,
        tuple(LayerShape(*one) for one in layers),
        attention.rope,
        (draft,) * drafts,
        norm_eps=1e-5,
        limit=attention.limit,
    )


# gpt-oss: grouped attention with sinks, a window in every other layer, and experts with clamped gates.


def read_gpt_oss(keys: ConfigKeys) -> Architecture:
    """gpt-oss. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    count, bias = keys.layers(), keys.flag("attention_bias", True)
    for needed in ("layer_types", "sliding_window"):
        if keys.raw.get(needed) is None:
            raise KeyError(needed)
    if not (keys.raw.get("rope_parameters") or keys.raw.get("rope_scaling")):
        raise KeyError("rope_scaling")
    variant = Variant(bias, bias, theta=150000.0, head_dim=64, sinks=True, windows=True)
    attention = grouped_attention(keys, count, variant)
    # A softmax over the chosen experts equals one over all, normalised.
    gate = GateShape(sigmoid=False, choice_bias=False, groups=1, kept_groups=1, normalise=True, factor=1.0, bias=True)
    experts = ExpertShape(
        experts=keys.whole("num_local_experts", keys.optional("num_experts")),
        per_token=keys.whole("num_experts_per_tok", keys.optional("experts_per_token")),
        width=keys.whole("intermediate_size"),
        shared_width=0,
        gate=gate,
        bias=True,
        clamped=ClampedGate(keys.number("swiglu_alpha", 1.702), keys.number("swiglu_limit", 7.0, least=0)),
    )
    keys.known("initial_context_length", "num_experts", "experts_per_token")  # duplicates of others
    layers = tuple(LayerShape(one, checked(experts)) for one in attention.layers)
    return architecture(keys, layers, attention.rope, norm_eps=1e-5, limit=attention.limit)
