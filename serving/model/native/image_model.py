"""A model on an image, bound to the native library without torch.

The image has every tensor under the name that `serving.model.assembly` requests it by; the structs are those that
`BoundModel` makes of a model in torch.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import ModelError
from serving.model.architecture import (
    Architecture,
    AttentionShape,
    DenseShape,
    ExpertShape,
    GroupedShape,
    LatentShape,
)
from serving.model.image import PLAIN, Image, address_of, config_fingerprint
from serving.model.native import layout
from serving.model.native.library import Library
from serving.model.native.panel_layout import open_panels

ExpertShapes = Sequence[tuple[layout.NativeLinear, layout.NativeLinear]]

_FORMS = {"float32": layout.Form.F32, "bfloat16": layout.Form.BF16}


def floats(stored: memoryview, dtype: str) -> NDArray[np.float32]:
    """Stored numbers as float32.

    Raises: ModelError if they are neither float32 nor bfloat16.
    """
    if dtype == "float32":
        return np.frombuffer(stored, np.float32)
    if dtype != "bfloat16":
        raise ModelError(f"numbers of {dtype} in a model image where float32 or bfloat16 is expected")
    return (np.frombuffer(stored, np.uint16).astype(np.uint32) << 16).view(np.float32)


class ImageModel:
    """A model for `NativeExecutor`. Its weights are the image's bytes, which it keeps in memory.

    Args:
        config: without indexers.
        dtype: `float32` or `bfloat16`.
    Attributes:
        struct: valid while this object exists.
        drafts: whether there is a draft layer.
    Raises: ModelError if the image is of another model, or has not the form of the native library.
    """

    def __init__(self, library: Library, image: Image, config: Architecture, dtype: str) -> None:
        manifest = image.manifest
        if (manifest.config, manifest.dtype) != (config_fingerprint(config), dtype):
            raise ModelError("the model image is of another configuration or dtype")
        self.config, self.dtype = config, dtype
        self.drafts = manifest.drafts[0] < manifest.drafts[1]
        self._library, self._image = library, image
        self._kept: list[object] = []
        first = len(config.layers)
        self.struct = layout.NativeModel(
            **model_sizes(config),
            form=_FORMS[dtype],
            norm_eps=config.rms_norm_eps,
            rope_frequencies=self._keep(np.array(config.rope.inverse_frequencies(config.rope_dim), np.float32)),
            embed=self._tensor("model.embed_tokens.weight"),
            blocks=layout.array_of(layout.NativeBlock, [self._block(layer) for layer in range(first)], self._kept),
            norm=self._floats("model.norm.weight"),
            head=self._linear("lm_head"),
            draft=layout.array_of(layout.NativeDraftLayer, [self._draft(first)] if self.drafts else [], self._kept),
        )

    def _block(self, layer: int) -> layout.NativeBlock:
        prefix, shape = f"model.layers.{layer}.", self.config.layer(layer)
        attention = prefix + "self_attn."
        bound = layout.NativeBlock(
            attention_norm=self._floats(prefix + "input_layernorm.weight"),
            into=self._linear(attention + "into"),
            out=self._linear(attention + "o_proj"),
            feed_norm=self._floats(prefix + "post_attention_layernorm.weight"),
        )
        if isinstance(shape.attention, GroupedShape):
            self._bind_grouped(bound, attention, shape.attention)
        else:
            self._bind_latent(bound, attention, shape.attention)
        feed, mlp = shape.feed, prefix + "mlp."
        if isinstance(feed, ExpertShape):
            self._bind_experts(bound, mlp, feed)
            mlp += "shared_experts."
        if isinstance(feed, DenseShape) or feed.shared_width:
            bound.gate_up, bound.down = self._linear(mlp + "gate_up"), self._linear(mlp + "down_proj")
        return bound

    def _bind_grouped(self, bound: layout.NativeBlock, prefix: str, shape: GroupedShape) -> None:
        bound.kind, bound.rotates = layout.AttentionKind.GROUPED, shape.rope_dim > 0
        bound.window = shape.window or 0
        if shape.head_norm:
            bound.query_norm = self._floats(prefix + "q_norm.weight")
            bound.key_norm = self._floats(prefix + "k_norm.weight")
        if shape.sinks:
            bound.sinks = self._floats(prefix + "sinks")

    def _bind_latent(self, bound: layout.NativeBlock, prefix: str, shape: LatentShape) -> None:
        if shape.query_latent is not None:
            bound.query_norm = self._floats(prefix + "q_a_layernorm.weight")
            bound.query_up = self._linear(prefix + "query_up")
        bound.latent_norm, bound.expand = (
            self._floats(prefix + "kv_a_layernorm.weight"),
            self._linear(prefix + "expand"),
        )
        bound.key_absorb = self._linear(prefix + "key_absorb")
        bound.value_absorb = self._linear(prefix + "value_absorb")

    def _bind_experts(self, bound: layout.NativeBlock, prefix: str, shape: ExpertShape) -> None:
        bound.gate = self._linear(prefix + "gate")
        if shape.gate.choice_bias:
            bound.gate_bias = self._floats(prefix + "gate.e_score_correction_bias")
        names = [f"{prefix}experts.{expert}." for expert in range(shape.experts)]
        gate_up, down = ([self._linear(name + part) for name in names] for part in ("gate_up", "down_proj"))
        bound.expert_gate_up = layout.array_of(layout.NativeLinear, gate_up, self._kept)
        bound.expert_down = layout.array_of(layout.NativeLinear, down, self._kept)

    def _draft(self, layer: int) -> layout.NativeDraftLayer:
        prefix, optional = f"model.layers.{layer}.", self._image.manifest.optional
        embed, head = prefix + "embed_tokens.weight", prefix + "shared_head.head"
        own_head = head if head + ".weight" in optional else prefix + "coarse_head"
        return layout.NativeDraftLayer(
            embed=self._tensor(embed if embed in optional else "model.embed_tokens.weight"),
            token_norm=self._floats(prefix + "enorm.weight"),
            hidden_norm=self._floats(prefix + "hnorm.weight"),
            fuse=self._linear(prefix + "eh_proj"),
            block=self._block(layer),
            norm=self._floats(prefix + "shared_head.norm.weight"),
            head=self._linear(own_head if self._image.has(own_head) else "lm_head"),
        )

    def _linear(self, name: str) -> layout.NativeLinear:
        entry = self._image.entry(name)
        if entry.layout == PLAIN:
            raise ModelError(f"{name} of a model image is not panels: the native step cannot use it")
        stored = self._image.manifest.layouts[entry.layout]
        linear, panels = open_panels(self._library, self._image.bytes_of(entry), stored, entry.dtype, entry.shape)
        linear.packed = address_of(panels)
        linear.bias = None if entry.bias is None else self._floats(entry.bias)
        return linear

    def _tensor(self, name: str) -> int:
        """Address of a tensor in the model's dtype."""
        entry = self._image.entry(name)
        if entry.layout != PLAIN or entry.dtype != self.dtype:
            raise ModelError(f"{name} of a model image is {entry.dtype}, not {self.dtype}")
        return address_of(self._image.bytes_of(entry))

    def _floats(self, name: str) -> int:
        entry = self._image.entry(name)
        if entry.layout != PLAIN:
            raise ModelError(f"{name} of a model image is packed where it should not be")
        return self._keep(floats(self._image.bytes_of(entry), entry.dtype))

    def _keep(self, values: NDArray[np.float32]) -> int:
        self._kept.append(values)
        return int(values.ctypes.data)


def model_sizes(config: Architecture) -> dict[str, int | float]:
    """The sizes and constants of `NativeModel` that the architecture determines."""
    shape, experts = config.attention, config.experts
    return {
        "vocab": config.vocab_size,
        "hidden": config.hidden_size,
        "layers": len(config.layers),
        "heads": shape.heads,
        "rope_dim": config.rope_dim,
        "softmax_scale": shape.scale,
        "rope_amplitude": config.rope.amplitude,
        **_head_sizes(shape, config.rope_dim),
        **({} if experts is None else _gate_sizes(experts, bf16_results=config.bf16_results)),
    }


def _head_sizes(shape: AttentionShape, rope_dim: int) -> dict[str, int | float]:
    if isinstance(shape, LatentShape):
        return {
            "q_lora": shape.query_latent or 0,
            "kv_lora": shape.latent,
            "nope_dim": shape.nope_dim,
            "value_dim": shape.value_dim,
            "latent_norm_eps": shape.norm_eps,
        }
    width = shape.head_dim
    return {"kv_heads": shape.kv_heads, "head_dim": width, "nope_dim": width - rope_dim, "value_dim": width}


def _gate_sizes(shape: ExpertShape, *, bf16_results: bool) -> dict[str, int | float]:
    clamped = {} if shape.clamped is None else {"gate_alpha": shape.clamped.alpha, "gate_limit": shape.clamped.limit}
    gate = shape.gate
    return {
        **clamped,
        "experts": shape.experts,
        "top_k": shape.per_token,
        "expert_groups": gate.groups,
        "kept_groups": gate.kept_groups if gate.groups > 1 else 1,
        "sigmoid_scores": gate.sigmoid,
        "normalise_weights": gate.normalise,
        "bf16_results": bf16_results,
        "routed_scaling": gate.factor,
    }


def logits_of(library: Library, model: layout.NativeModel, hidden: NDArray[Any], threads: int) -> NDArray[np.float32]:
    """Next-token logits of some rows.

    Args:
        model: bound, with its addresses.
        hidden: `[rows, hidden]` before the final norm, float32, or the bits of bfloat16 as uint16.
        threads: that compute.
    Returns: `[rows, vocab]`.
    Raises: ModelError if memory is short.
    """
    single = hidden.dtype == np.float32
    wide = hidden if single else (hidden.astype(np.uint32) << 16).view(np.float32)
    weight = np.ctypeslib.as_array((ctypes.c_float * model.hidden).from_address(model.norm))
    scale = 1 / np.sqrt(np.square(wide).mean(-1, keepdims=True) + np.float32(model.norm_eps))
    rows = wide * scale
    rows = rows * weight if single else _to_bf16(_to_bf16(rows) * weight)
    result = np.empty((len(rows), model.vocab), np.float32 if single else np.uint16)
    given = np.ascontiguousarray(rows if single else rows.view(np.uint32) >> 16, hidden.dtype)
    form = layout.Form.F32 if single else layout.Form.BF16
    library.apply(model.head, given.ctypes.data, len(rows), form, result.ctypes.data, threads)
    return result if single else (result.astype(np.uint32) << 16).view(np.float32)


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
