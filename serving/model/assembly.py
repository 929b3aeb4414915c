"""Assembles a model from checkpoint tensors: fusing, splitting, reordering and packing, in one place."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from serving.model.architecture import (
    Architecture,
    ClampedGate,
    DenseShape,
    ExpertShape,
    GroupedShape,
    IndexerShape,
    LatentShape,
)
from serving.model.checkpoint import TensorSource
from serving.model.experts import ExpertLayer, Gate, make_experts
from serving.model.grouped_attention import GroupedAttention, GroupedWeights
from serving.model.latent_attention import LatentAttention, LatentWeights
from serving.model.layers import Mlp, RmsNorm
from serving.model.linear import Linear, LinearWeight, fuse
from serving.model.model import Block, Model, MtpLayer
from serving.model.rope import rotated_last
from serving.model.sparse_attention import Indexer, IndexerWeights, SparseAttention
from serving.model.tensors import INDEXER
from serving.model.weight_bank import CoarseBank, WeightBank

# Products, norms and tensors of a model by their checkpoint names, for a weight bank.
#
# Every final tensor goes through a `WeightBank`, so reading is deferred until a bank requests it: the same code
# assembles a model from an image without a checkpoint.


class CheckpointParts:
    """Parts of one checkpoint with checked names and shapes.

    Args:
        dtype: of all parts except the gates, which are float32.
    """

    def __init__(
        self, config: Architecture, source: TensorSource, bank: WeightBank, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.source = source
        self.bank = bank
        self.dtype = dtype
        self.device = device

    def linear(self, name: str) -> Linear:
        """A product as stored in the checkpoint; `name` without `.weight`."""
        return self.bank.linear(name, lambda: self.weight(name))

    def weight(self, name: str) -> LinearWeight:
        """A product's weight, read immediately."""
        bias = self.read(name + ".bias") if name + ".bias" in self.source.names else None
        int8 = self.source.int8(name + ".weight", self.device)
        if int8 is not None:
            return LinearWeight(int8.weight, bias, int8.scale)
        return LinearWeight(self.read(name + ".weight"), bias)

    def norm(self, name: str, eps: float | None = None) -> RmsNorm:
        """A norm; `eps` if it differs from the model's."""
        return RmsNorm(self.tensor(name), self.config.rms_norm_eps if eps is None else eps)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor as stored in the checkpoint."""
        return self.bank.tensor(name, lambda: self.read(name, dtype))

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor immediately, by default in the model's dtype."""
        return self.source.tensor(name, dtype or self.dtype, self.device)


def fused(dtype: torch.dtype, *parts: LinearWeight) -> LinearWeight:
    """One product in place of several. If only some are INT8, they are dequantised, since a product takes one input."""
    if len({part.scale is None for part in parts}) == 1:
        return fuse(*parts)
    return fuse(*(floating(part, dtype) for part in parts))


def floating(given: LinearWeight, dtype: torch.dtype) -> LinearWeight:
    """The same product with a floating-point weight."""
    if given.scale is None:
        return given
    return LinearWeight((given.weight * given.scale.unsqueeze(1)).to(dtype), given.bias)


# Assembles a model from checkpoint tensors: fusing, splitting, reordering and packing, in one place.


class Assembly(CheckpointParts):
    """Builds a model from its checkpoint's parts."""

    def model(self, draft_layers: range) -> Model:
        """The whole model.

        Args:
            draft_layers: indices of the draft layers to load.
        """
        config = self.config
        embed = self.tensor("model.embed_tokens.weight")
        blocks = [self.block(layer) for layer in range(len(config.layers))]
        norm = self.norm("model.norm.weight")
        tied = config.tie_word_embeddings
        head = self.bank.linear("lm_head", lambda: LinearWeight(embed)) if tied else self.linear("lm_head")
        drafting = self._coarse() if self.bank.coarse_drafts else self
        drafts = [drafting.draft(layer, embed, head) for layer in draft_layers]
        return Model(config, embed, blocks, norm, head, drafts)

    def draft(self, layer: int, embed: Tensor, head: Linear) -> MtpLayer:
        """One draft layer.

        Args:
            embed, head: the model's own, for a draft layer without them.
        """
        prefix = f"model.layers.{layer}."
        names = self.source.names
        own_embed, own_head = prefix + "embed_tokens.weight", prefix + "shared_head.head"
        return MtpLayer(
            embed=self.tensor(own_embed) if own_embed in names else embed,
            token_norm=self.norm(prefix + "enorm.weight"),
            hidden_norm=self.norm(prefix + "hnorm.weight"),
            fuse=self.linear(prefix + "eh_proj"),
            block=self.block(layer),
            norm=self.norm(prefix + "shared_head.norm.weight"),
            head=self._draft_head(prefix, embed, head) if own_head + ".weight" not in names else self.linear(own_head),
        )

    def expert(self, layer: int, number: int) -> Mlp:
        """One routed expert, of the model or of a draft layer."""
        feed = self.config.layer(layer).feed
        assert isinstance(feed, ExpertShape), "a dense layer has no experts"
        return self._of_layer(layer)._mlp(f"model.layers.{layer}.mlp.experts.{number}.", feed.clamped)

    def shared(self, layer: int) -> Mlp:
        """The shared experts of a layer that has some."""
        return self._of_layer(layer)._mlp(f"model.layers.{layer}.mlp.shared_experts.")

    def _of_layer(self, layer: int) -> "Assembly":
        drafting = layer >= len(self.config.layers) and self.bank.coarse_drafts
        return self._coarse() if drafting else self

    def _coarse(self) -> "Assembly":
        return Assembly(self.config, self.source, CoarseBank(self.bank), self.dtype, self.device)

    def _draft_head(self, prefix: str, embed: Tensor, head: Linear) -> Linear:
        """The model's own head, or a coarse copy of it."""
        if not self.bank.coarse_drafts:
            return head
        tied = self.config.tie_word_embeddings
        return self.bank.linear(prefix + "coarse_head", lambda: LinearWeight(embed) if tied else self.weight("lm_head"))

    def block(self, layer: int) -> Block:
        """One transformer block, of the model or of a draft layer."""
        prefix, feed = f"model.layers.{layer}.", self.config.layer(layer).feed
        return Block(
            self.norm(prefix + "input_layernorm.weight"),
            attention(self, prefix + "self_attn.", layer),
            self.norm(prefix + "post_attention_layernorm.weight"),
            self._mlp(prefix + "mlp.") if isinstance(feed, DenseShape) else self._experts(prefix + "mlp.", feed),
        )

    def _experts(self, prefix: str, shape: ExpertShape) -> ExpertLayer:
        bias = prefix + "gate.e_score_correction_bias"
        gate = Gate(
            shape.gate,
            shape.per_token,
            self.bank.linear(prefix + "gate", lambda: self._scores(prefix + "gate", shape)),
            self.tensor(bias, torch.float32) if shape.gate.choice_bias else None,
        )
        nets = [self._mlp(f"{prefix}experts.{expert}.", shape.clamped) for expert in range(shape.experts)]
        experts = make_experts([net.gate_up for net in nets], [net.down for net in nets], shape.clamped)
        shared = self._mlp(prefix + "shared_experts.") if shape.shared_width else None
        return ExpertLayer(gate, experts, shape.experts, shared, bf16_results=self.config.bf16_results)

    def _scores(self, name: str, shape: ExpertShape) -> LinearWeight:
        """The product that scores experts, in float32."""
        bias = self.read(name + ".bias", torch.float32) if shape.gate.bias else None
        return LinearWeight(self.read(name + ".weight", torch.float32), bias)

    def _mlp(self, prefix: str, clamped: ClampedGate | None = None) -> Mlp:
        gate_up = self.bank.linear(prefix + "gate_up", lambda: self._gate_up(prefix))
        return Mlp(gate_up, self.linear(prefix + "down_proj"), clamped)

    def _gate_up(self, prefix: str) -> LinearWeight:
        return fused(self.dtype, self.weight(prefix + "gate_proj"), self.weight(prefix + "up_proj"))


# Assembles attention from checkpoint tensors: fusing, splitting and reordering.


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
