"""Assembles attention from checkpoint tensors: fusing, splitting and reordering."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from serving.model.architecture import GroupedShape, IndexerShape, LatentShape
from serving.model.checkpoint_parts import CheckpointParts, floating, fused
from serving.model.grouped_attention import GroupedAttention, GroupedWeights
from serving.model.indexer import Indexer, IndexerWeights
from serving.model.latent_attention import LatentAttention, LatentWeights
from serving.model.linear import Linear, LinearWeight
from serving.model.norm import RmsNorm
from serving.model.rope import rotated_last
from serving.model.sparse_attention import SparseAttention
from serving.model.tensors import INDEXER


def attention(parts: CheckpointParts, prefix: str, layer: int) -> "LatentAttention | GroupedAttention":
    """Attention of one layer, of the model or of a draft layer.

    Args:
        prefix: of its tensors' names.
    """
    shape = parts.config.layer(layer).attention
    if isinstance(shape, LatentShape):
        return _Latent(parts, prefix, shape).layer(layer)
    return _grouped(parts, prefix, shape, layer)


class _Latent:
    """Latent attention of one layer."""

    def __init__(self, parts: CheckpointParts, prefix: str, shape: LatentShape) -> None:
        self._parts = parts
        self._prefix = prefix
        self._shape = shape

    def layer(self, layer: int) -> LatentAttention:
        parts, prefix, shape = self._parts, self._prefix, self._shape
        lora = shape.query_latent is not None
        # The bank builds two tensors from each of these; each is read once, for the first of the two.
        query = cache(partial(self._query, prefix + ("q_b_proj" if lora else "q_proj")))
        expand = cache(partial(self._expand, prefix + "kv_b_proj"))
        weights = LatentWeights(
            into=parts.bank.linear(prefix + "into", lambda: self._into(query)),
            query_norm=parts.norm(prefix + "q_a_layernorm.weight", shape.norm_eps) if lora else None,
            query_up=parts.bank.linear(prefix + "query_up", query) if lora else None,
            latent_norm=parts.norm(prefix + "kv_a_layernorm.weight", shape.norm_eps),
            expand=parts.bank.linear(prefix + "expand", lambda: replace(expand(), many_rows=True)),
            key_absorb=parts.bank.heads(prefix + "key_absorb", lambda: self._key_absorb(expand())),
            value_absorb=parts.bank.heads(prefix + "value_absorb", lambda: self._value_absorb(expand())),
            out=parts.linear(prefix + "o_proj"),
        )
        if shape.indexer is None:
            return LatentAttention(shape, weights, layer)
        own = None if shape.indexer.shared else _indexer(parts, prefix + INDEXER, shape.indexer)
        return SparseAttention(shape, weights, layer, own)

    def _query(self, name: str) -> LinearWeight:
        return self._paired(self._parts.weight(name), self._shape.heads)

    def _into(self, query: Callable[[], LinearWeight]) -> LinearWeight:
        parts, prefix = self._parts, self._prefix
        latent = self._paired(parts.weight(prefix + "kv_a_proj_with_mqa"), 1)
        first = query() if self._shape.query_latent is None else parts.weight(prefix + "q_a_proj")
        return fused(parts.dtype, first, latent)

    def _paired(self, given: LinearWeight, heads: int) -> LinearWeight:
        """The same product with neighbouring rotary rows, which are already at the end of each head."""
        if self._parts.config.rope.interleave:
            return given
        width = given.weight.shape[0] // heads
        return _reordered(given, heads, rotated_last(width, self._shape.rope_dim, width - self._shape.rope_dim))

    def _expand(self, name: str) -> LinearWeight:
        """kv_b_proj: prompts expand their context with it, decode absorbs it."""
        # Never W8A8: the two forms would round activations in different places and give different results.
        given, parts = self._parts.weight(name), self._parts
        inputs = max(self._shape.latent, self._shape.nope_dim)
        if given.scale is None or parts.dtype != torch.bfloat16 or inputs > parts.bank.w8a16_inputs:
            return floating(given, parts.dtype)
        return LinearWeight(given.weight, given.bias, given.scale, weight_only=True)

    def _key_absorb(self, expand: LinearWeight) -> LinearWeight:
        return self._heads(expand, lambda part: part[:, : self._shape.nope_dim])

    def _value_absorb(self, expand: LinearWeight) -> LinearWeight:
        return self._heads(expand, lambda part: part[:, self._shape.nope_dim :].transpose(1, 2))

    def _heads(self, expand: LinearWeight, part_of: Callable[[Tensor], Tensor]) -> LinearWeight:
        """A part of each head's `[nope + value, latent]` in kv_b_proj."""
        heads = self._shape.heads
        weight = part_of(expand.weight.view(heads, -1, self._shape.latent)).contiguous()
        if expand.scale is None:
            return LinearWeight(weight)
        return LinearWeight(weight, None, part_of(expand.scale.view(heads, -1, 1)).contiguous(), weight_only=True)


def _indexer(parts: CheckpointParts, prefix: str, shape: IndexerShape) -> Indexer:
    """The indexer of one layer."""
    order = rotated_last(shape.head_dim, shape.rope_dim, 0, interleave=shape.interleave)

    def product(name: str, heads: int) -> Linear:
        return parts.bank.linear(prefix + name, lambda: _reordered(parts.weight(prefix + name), heads, order))

    def vector(name: str) -> Tensor:
        return parts.bank.tensor(prefix + name, lambda: parts.read(prefix + name)[order].contiguous())

    heads = prefix + "weights_proj"
    weights = IndexerWeights(
        query=product("wq_b", shape.heads),
        key=product("wk", 1),
        key_norm=vector("k_norm.weight"),
        key_norm_bias=vector("k_norm.bias"),
        heads=parts.bank.linear(heads, lambda: LinearWeight(parts.read(heads + ".weight", torch.float32))),
    )
    return Indexer(shape, weights)


def _grouped(parts: CheckpointParts, prefix: str, shape: GroupedShape, layer: int) -> GroupedAttention:
    """Grouped attention of one layer."""
    order = rotated_last(shape.head_dim, shape.rope_dim, 0, interleave=parts.config.rope.interleave)

    def into() -> LinearWeight:
        query = _reordered(parts.weight(prefix + "q_proj"), shape.heads, order)
        key = _reordered(parts.weight(prefix + "k_proj"), shape.kv_heads, order)
        return fused(parts.dtype, query, key, parts.weight(prefix + "v_proj"))

    def norm(name: str) -> RmsNorm | None:
        if not shape.head_norm:
            return None
        weight = parts.bank.tensor(prefix + name, lambda: parts.read(prefix + name)[order].contiguous())
        return RmsNorm(weight, parts.config.rms_norm_eps)

    weights = GroupedWeights(
        into=parts.bank.linear(prefix + "into", into),
        query_norm=norm("q_norm.weight"),
        key_norm=norm("k_norm.weight"),
        out=parts.linear(prefix + "o_proj"),
        sinks=parts.tensor(prefix + "sinks") if shape.sinks else None,
    )
    return GroupedAttention(shape, weights, layer)


def _reordered(given: LinearWeight, heads: int, order: Tensor) -> LinearWeight:
    """The same product with the rows of each head in another order."""

    def turned(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        rows = part.reshape(heads, -1, *part.shape[1:])
        return rows.index_select(1, order.to(part.device)).reshape(part.shape)

    weight = turned(given.weight)
    assert weight is not None
    return LinearWeight(weight, turned(given.bias), turned(given.scale))
