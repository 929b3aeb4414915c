"""Assembles a model from checkpoint tensors: fusing, splitting, reordering and packing, in one place."""

import torch
from torch import Tensor

from serving.model.architecture import ClampedGate, DenseShape, ExpertShape
from serving.model.attention_assembly import attention
from serving.model.block import Block
from serving.model.checkpoint_parts import CheckpointParts, fused
from serving.model.coarse_bank import CoarseBank
from serving.model.experts import ExpertLayer, make_experts
from serving.model.gate import Gate
from serving.model.linear import Linear, LinearWeight
from serving.model.mlp import Mlp
from serving.model.model import Model
from serving.model.mtp import MtpLayer


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
        drafting = layer >= len(self.config.layers) and self.bank.coarse_drafts
        feed = self.config.layer(layer).feed
        assert isinstance(feed, ExpertShape), "a dense layer has no experts"
        return (self._coarse() if drafting else self)._mlp(f"model.layers.{layer}.mlp.experts.{number}.", feed.clamped)

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
