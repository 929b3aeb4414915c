"""Putting a model together from checkpoint tensors: fusing, splitting, reordering, packing, in one place."""

import torch
from torch import Tensor

from serving.model.attention import AttentionWeights, LatentAttention
from serving.model.block import Block
from serving.model.checkpoint import Checkpoint
from serving.model.config import ModelConfig
from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.gate import Gate
from serving.model.linear import Linear, fuse_linear, make_linear
from serving.model.mlp import Mlp
from serving.model.model import DeepseekModel
from serving.model.mtp import MtpLayer
from serving.model.norm import RmsNorm
from serving.model.rope import pair_neighbours

# The norms inside attention have a fixed epsilon in DeepSeek's code, whatever `rms_norm_eps` says.
_LATENT_NORM_EPS = 1e-6


class Assembly:
    """Builds a model's parts from one checkpoint, whose names and shapes were checked before.

    Args:
        dtype: of everything but the gates, which are float32.
    """

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.checkpoint = checkpoint
        self.dtype = dtype
        self.device = device

    def model(self, draft_layers: range) -> DeepseekModel:
        """The whole model.

        Args:
            draft_layers: indices of the draft layers to load.
        """
        config = self.config
        embed = self._tensor("model.embed_tokens.weight")
        blocks = [self._block(layer) for layer in range(config.num_hidden_layers)]
        norm = self._norm("model.norm.weight")
        head = make_linear(embed) if config.tie_word_embeddings else self._linear("lm_head")
        drafts = [self._mtp(layer, embed, head) for layer in draft_layers]
        return DeepseekModel(config, embed, blocks, norm, head, drafts)

    def _mtp(self, layer: int, embed: Tensor, head: Linear) -> MtpLayer:
        prefix = f"model.layers.{layer}."
        names = self.checkpoint.names
        own_embed, own_head = prefix + "embed_tokens.weight", prefix + "shared_head.head"
        return MtpLayer(
            embed=self._tensor(own_embed) if own_embed in names else embed,
            token_norm=self._norm(prefix + "enorm.weight"),
            hidden_norm=self._norm(prefix + "hnorm.weight"),
            fuse=self._linear(prefix + "eh_proj"),
            block=self._block(layer),
            norm=self._norm(prefix + "shared_head.norm.weight"),
            head=self._linear(own_head) if own_head + ".weight" in names else head,
        )

    def _block(self, layer: int) -> Block:
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
        query, query_bias = self._weight_and_bias(prefix + ("q_b_proj" if lora else "q_proj"))
        latent, latent_bias = self._weight_and_bias(prefix + "kv_a_proj_with_mqa")
        if not config.rope.interleave:
            rope = config.qk_rope_head_dim
            query = pair_neighbours(query, config.num_attention_heads, rope)
            latent = pair_neighbours(latent, 1, rope)
            latent_bias = None if latent_bias is None else pair_neighbours(latent_bias, 1, rope)
        first, first_bias = self._weight_and_bias(prefix + "q_a_proj") if lora else (query, query_bias)
        expand = self._tensor(prefix + "kv_b_proj.weight")
        per_head = expand.view(config.num_attention_heads, -1, config.kv_lora_rank)
        weights = AttentionWeights(
            into=fuse_linear((first, latent), (first_bias, latent_bias)),
            query_norm=self._norm(prefix + "q_a_layernorm.weight", _LATENT_NORM_EPS) if lora else None,
            query_up=make_linear(query, query_bias) if lora else None,
            latent_norm=self._norm(prefix + "kv_a_layernorm.weight", _LATENT_NORM_EPS),
            expand=make_linear(expand),
            key_absorb=per_head[:, : config.qk_nope_head_dim].contiguous(),
            value_absorb=per_head[:, config.qk_nope_head_dim :].transpose(1, 2).contiguous(),
            out=self._linear(prefix + "o_proj"),
        )
        return LatentAttention(config, weights, layer)

    def _experts(self, prefix: str) -> ExpertLayer:
        config = self.config
        bias = prefix + "gate.e_score_correction_bias"
        gate = Gate(
            config,
            self._tensor(prefix + "gate.weight", torch.float32),
            self._tensor(bias, torch.float32) if config.topk_method == "noaux_tc" else None,
        )
        nets = [self._mlp(f"{prefix}experts.{expert}.") for expert in range(config.n_routed_experts)]
        experts = LocalExperts([net.gate_up for net in nets], [net.down for net in nets])
        shared = self._mlp(prefix + "shared_experts.") if config.n_shared_experts else None
        return ExpertLayer(gate, experts, config.n_routed_experts, shared)

    def _mlp(self, prefix: str) -> Mlp:
        gate, up = self._tensor(prefix + "gate_proj.weight"), self._tensor(prefix + "up_proj.weight")
        return Mlp(fuse_linear((gate, up), (None, None)), self._linear(prefix + "down_proj"))

    def _linear(self, name: str) -> Linear:
        return make_linear(*self._weight_and_bias(name))

    def _weight_and_bias(self, name: str) -> tuple[Tensor, Tensor | None]:
        bias = name + ".bias"
        return self._tensor(name + ".weight"), self._tensor(bias) if bias in self.checkpoint.names else None

    def _norm(self, name: str, eps: float | None = None) -> RmsNorm:
        return RmsNorm(self._tensor(name), self.config.rms_norm_eps if eps is None else eps)

    def _tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.checkpoint.tensor(name, dtype or self.dtype, self.device)
