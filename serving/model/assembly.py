"""Putting a model together from checkpoint tensors: fusing, splitting, reordering, packing, in one place.

Every final tensor goes through a `WeightBank`, so all reading is put off until a bank asks for it: a model that lies in
an image is assembled by the same code without touching a checkpoint.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from serving.model.attention import AttentionWeights, LatentAttention
from serving.model.block import Block
from serving.model.checkpoint import TensorSource
from serving.model.coarse_bank import CoarseBank
from serving.model.config import Architecture
from serving.model.experts import ExpertLayer, make_experts
from serving.model.gate import Gate
from serving.model.linear import Linear, LinearWeight, fuse
from serving.model.mlp import Mlp
from serving.model.model import DeepseekModel
from serving.model.mtp import MtpLayer
from serving.model.norm import RmsNorm
from serving.model.rope import pair_neighbours
from serving.model.weight_bank import WeightBank

# The norms inside attention have a fixed epsilon in DeepSeek's code, whatever `rms_norm_eps` says.
_LATENT_NORM_EPS = 1e-6


class Assembly:
    """Builds a model's parts from one checkpoint, whose names and shapes were checked before.

    Args:
        dtype: of everything but the gates, which are float32.
    """

    def __init__(
        self, config: Architecture, source: TensorSource, bank: WeightBank, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.source = source
        self.bank = bank
        self.dtype = dtype
        self.device = device

    def model(self, draft_layers: range) -> DeepseekModel:
        """The whole model.

        Args:
            draft_layers: indices of the draft layers to load.
        """
        config = self.config
        embed = self._tensor("model.embed_tokens.weight")
        blocks = [self.block(layer) for layer in range(config.num_hidden_layers)]
        norm = self._norm("model.norm.weight")
        tied = config.tie_word_embeddings
        head = self.bank.linear("lm_head", lambda: LinearWeight(embed)) if tied else self._linear("lm_head")
        drafting = self._coarse() if self.bank.coarse_drafts else self
        drafts = [drafting.draft(layer, embed, head) for layer in draft_layers]
        return DeepseekModel(config, embed, blocks, norm, head, drafts)

    def draft(self, layer: int, embed: Tensor, head: Linear) -> MtpLayer:
        """One draft layer.

        Args:
            embed, head: the model's own, for a draft layer that brings none.
        """
        prefix = f"model.layers.{layer}."
        names = self.source.names
        own_embed, own_head = prefix + "embed_tokens.weight", prefix + "shared_head.head"
        return MtpLayer(
            embed=self._tensor(own_embed) if own_embed in names else embed,
            token_norm=self._norm(prefix + "enorm.weight"),
            hidden_norm=self._norm(prefix + "hnorm.weight"),
            fuse=self._linear(prefix + "eh_proj"),
            block=self.block(layer),
            norm=self._norm(prefix + "shared_head.norm.weight"),
            head=self._draft_head(prefix, embed, head) if own_head + ".weight" not in names else self._linear(own_head),
        )

    def expert(self, layer: int, number: int) -> Mlp:
        """One routed expert, of the model or of a draft layer."""
        drafting = layer >= self.config.num_hidden_layers and self.bank.coarse_drafts
        return (self._coarse() if drafting else self)._mlp(f"model.layers.{layer}.mlp.experts.{number}.")

    def _coarse(self) -> "Assembly":
        return Assembly(self.config, self.source, CoarseBank(self.bank), self.dtype, self.device)

    def _draft_head(self, prefix: str, embed: Tensor, head: Linear) -> Linear:
        """The model's own head, or a coarse copy of it."""
        if not self.bank.coarse_drafts:
            return head
        tied = self.config.tie_word_embeddings
        return self.bank.linear(
            prefix + "coarse_head", lambda: LinearWeight(embed) if tied else self._weight("lm_head")
        )

    def block(self, layer: int) -> Block:
        """One transformer block, of the model or of a draft layer."""
        prefix = f"model.layers.{layer}."
        return Block(
            self._norm(prefix + "input_layernorm.weight"),
            self._attention(prefix + "self_attn.", layer),
            self._norm(prefix + "post_attention_layernorm.weight"),
            self._mlp(prefix + "mlp.") if self.config.is_dense(layer) else self._experts(prefix + "mlp."),
        )

    def _attention(self, prefix: str, layer: int) -> LatentAttention:
        config = self.config
        lora = config.q_lora_rank is not None
        # Two of the bank's tensors are built from each of these; it is read when the first is, and once.
        query = cache(partial(self._query, prefix + ("q_b_proj" if lora else "q_proj")))
        expand = cache(partial(self._expand, prefix + "kv_b_proj"))
        weights = AttentionWeights(
            into=self.bank.linear(prefix + "into", lambda: self._into(prefix, query)),
            query_norm=self._norm(prefix + "q_a_layernorm.weight", _LATENT_NORM_EPS) if lora else None,
            query_up=self.bank.linear(prefix + "query_up", query) if lora else None,
            latent_norm=self._norm(prefix + "kv_a_layernorm.weight", _LATENT_NORM_EPS),
            expand=self.bank.linear(prefix + "expand", lambda: replace(expand(), many_rows=True)),
            key_absorb=self.bank.heads(prefix + "key_absorb", lambda: self._key_absorb(expand())),
            value_absorb=self.bank.heads(prefix + "value_absorb", lambda: self._value_absorb(expand())),
            out=self._linear(prefix + "o_proj"),
        )
        return LatentAttention(config, weights, layer)

    def _query(self, name: str) -> LinearWeight:
        query = self._weight(name)
        if not self.config.rope.interleave:
            query = _paired(query, self.config.num_attention_heads, self.config.qk_rope_head_dim)
        return query

    def _into(self, prefix: str, query: Callable[[], LinearWeight]) -> LinearWeight:
        latent = self._weight(prefix + "kv_a_proj_with_mqa")
        if not self.config.rope.interleave:
            latent = _paired(latent, 1, self.config.qk_rope_head_dim)
        lora = self.config.q_lora_rank is not None
        return _fused(self.dtype, self._weight(prefix + "q_a_proj") if lora else query(), latent)

    def _expand(self, name: str) -> LinearWeight:
        """kv_b_proj: prompts expand their context with it, decode absorbs it."""
        # Never W8A8: the two forms would round activations in different places, and not agree.
        given = self._weight(name)
        inputs = max(self.config.kv_lora_rank, self.config.qk_nope_head_dim)
        if given.scale is None or self.dtype != torch.bfloat16 or inputs > self.bank.w8a16_inputs:
            return _floating(given, self.dtype)
        return LinearWeight(given.weight, given.bias, given.scale, weight_only=True)

    def _key_absorb(self, expand: LinearWeight) -> LinearWeight:
        return self._heads(expand, lambda part: part[:, : self.config.qk_nope_head_dim])

    def _value_absorb(self, expand: LinearWeight) -> LinearWeight:
        return self._heads(expand, lambda part: part[:, self.config.qk_nope_head_dim :].transpose(1, 2))

    def _heads(self, expand: LinearWeight, part_of: Callable[[Tensor], Tensor]) -> LinearWeight:
        """A part of each head's `[nope + value, kv_lora]` in kv_b_proj."""
        heads = self.config.num_attention_heads
        weight = part_of(expand.weight.view(heads, -1, self.config.kv_lora_rank)).contiguous()
        if expand.scale is None:
            return LinearWeight(weight)
        return LinearWeight(weight, None, part_of(expand.scale.view(heads, -1, 1)).contiguous(), weight_only=True)

    def _experts(self, prefix: str) -> ExpertLayer:
        config = self.config
        bias = prefix + "gate.e_score_correction_bias"
        gate = Gate(
            config,
            self.bank.linear(prefix + "gate", lambda: LinearWeight(self._read(prefix + "gate.weight", torch.float32))),
            self._tensor(bias, torch.float32) if config.topk_method == "noaux_tc" else None,
        )
        nets = [self._mlp(f"{prefix}experts.{expert}.") for expert in range(config.n_routed_experts)]
        experts = make_experts([net.gate_up for net in nets], [net.down for net in nets])
        shared = self._mlp(prefix + "shared_experts.") if config.n_shared_experts else None
        return ExpertLayer(gate, experts, config.n_routed_experts, shared, bf16_results=config.bf16_results)

    def _mlp(self, prefix: str) -> Mlp:
        gate_up = self.bank.linear(prefix + "gate_up", lambda: self._gate_up(prefix))
        return Mlp(gate_up, self._linear(prefix + "down_proj"))

    def _gate_up(self, prefix: str) -> LinearWeight:
        return _fused(self.dtype, self._weight(prefix + "gate_proj"), self._weight(prefix + "up_proj"))

    def _linear(self, name: str) -> Linear:
        return self.bank.linear(name, lambda: self._weight(name))

    def _weight(self, name: str) -> LinearWeight:
        bias = self._read(name + ".bias") if name + ".bias" in self.source.names else None
        int8 = self.source.int8(name + ".weight", self.device)
        if int8 is not None:
            return LinearWeight(int8.weight, bias, int8.scale)
        return LinearWeight(self._read(name + ".weight"), bias)

    def _norm(self, name: str, eps: float | None = None) -> RmsNorm:
        return RmsNorm(self._tensor(name), self.config.rms_norm_eps if eps is None else eps)

    def _tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.bank.tensor(name, lambda: self._read(name, dtype))

    def _read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.source.tensor(name, dtype or self.dtype, self.device)


def _fused(dtype: torch.dtype, *parts: LinearWeight) -> LinearWeight:
    """One product in place of several. Where only some are INT8 those are dequantised: a product takes one input."""
    if len({part.scale is None for part in parts}) == 1:
        return fuse(*parts)
    return fuse(*(_floating(part, dtype) for part in parts))


def _floating(given: LinearWeight, dtype: torch.dtype) -> LinearWeight:
    if given.scale is None:
        return given
    return LinearWeight((given.weight * given.scale.unsqueeze(1)).to(dtype), given.bias)


def _paired(given: LinearWeight, heads: int, rope_dim: int) -> LinearWeight:
    """The same product with neighbouring rotary rows."""
    weight, bias, scale = (
        None if part is None else pair_neighbours(part, heads, rope_dim)
        for part in (given.weight, given.bias, given.scale)
    )
    assert weight is not None
    return LinearWeight(weight, bias, scale)
