"""Configuration keys of grouped-query attention, in Llama's form, which other families share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from serving.errors import ModelError
from serving.model.architecture import ContextLimit, GroupedShape
from serving.model.config_keys import ConfigKeys
from serving.model.config_values import number, whole
from serving.model.rope_config import RopeConfig, read_rope

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
