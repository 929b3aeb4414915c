"""The storyteller's network for training: DeepSeek-V3 (MLA, MoE, one MTP layer) in plain torch.

Parameter names are those of DeepSeek's checkpoints, so `state_dict()` is the export, and `transformers` reads it.
Attention here is the plain multi-head form of MLA; serving may use the absorbed form of the same weights. Only what
this model needs is written: no YaRN, no cache, no tensor parallelism.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from fast_ops import LinearCrossEntropy, Permute, causal_attention
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes, named as in Hugging Face's `DeepseekV3Config`."""

    vocab_size: int = 3072
    hidden_size: int = 256
    num_hidden_layers: int = 6
    first_k_dense_replace: int = 1
    intermediate_size: int = 768
    num_attention_heads: int = 4
    q_lora_rank: int = 128
    kv_lora_rank: int = 96
    qk_nope_head_dim: int = 48
    qk_rope_head_dim: int = 16
    v_head_dim: int = 64
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    n_shared_experts: int = 1
    moe_intermediate_size: int = 160
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 1.5
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale; statistics in the input's own dtype (fp32 under autocast)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size], same dtype."""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def linear(n_in: int, n_out: int) -> nn.Linear:
    """A linear layer without bias, as everywhere in this architecture."""
    return nn.Linear(n_in, n_out, bias=False)


def rope_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """cos and sin [length, rope_dim / 2] float32 for positions 0 .. length - 1."""
    half = torch.arange(0, shape.qk_rope_head_dim, 2, dtype=torch.float32) / shape.qk_rope_head_dim
    angle = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_theta**-half)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on interleaved pairs (x0, x1), (x2, x3) ...; x [..., length, heads, rope_dim], tables [length, 1, half].

    The rotated pairs come out as two halves; queries and keys share the order, so scores do not change.
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1)


class Attention(nn.Module):
    """Multi-head latent attention, plain form: latents are expanded into per-head keys and values."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        heads, qk = s.num_attention_heads, s.qk_nope_head_dim + s.qk_rope_head_dim
        self.q_a_proj = linear(s.hidden_size, s.q_lora_rank)
        self.q_a_layernorm = RMSNorm(s.q_lora_rank, 1e-6)
        self.q_b_proj = linear(s.q_lora_rank, heads * qk)
        self.kv_a_proj_with_mqa = linear(s.hidden_size, s.kv_lora_rank + s.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(s.kv_lora_rank, 1e-6)
        self.kv_b_proj = linear(s.kv_lora_rank, heads * (s.qk_nope_head_dim + s.v_head_dim))
        self.o_proj = linear(heads * s.v_head_dim, s.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal self-attention over [batch, length, hidden]; tables [length, rope_dim / 2]."""
        s = self.s
        batch, length, _ = x.shape
        heads, nope, rope = s.num_attention_heads, s.qk_nope_head_dim, s.qk_rope_head_dim
        cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, length, heads, nope + rope)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([s.kv_lora_rank, rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, heads, nope + s.v_head_dim)
        k_nope, value = kv.split([nope, s.v_head_dim], -1)
        k_rope = rotate(k_rope[:, :, None], cos, sin).expand(-1, -1, heads, -1)
        query = torch.cat((q[..., :nope], rotate(q[..., nope:], cos, sin)), -1)
        key = torch.cat((k_nope, k_rope), -1)
        mask = torch.full((length, length), float("-inf"), dtype=query.dtype).triu(1)
        return self.o_proj(causal_attention(query, key, value, mask))


class Mlp(nn.Module):
    """SwiGLU feed-forward; also one expert."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = linear(hidden, inner)
        self.up_proj = linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    """Router: sigmoid scores, a bias that only steers the choice, groups limited to the best `topk_group`."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.weight = nn.Parameter(torch.randn(s.n_routed_experts, s.hidden_size) * s.hidden_size**-0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(s.n_routed_experts))
        self.register_buffer("load", torch.zeros(s.n_routed_experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choose experts for [tokens, hidden].

        Returns: weights [tokens, top_k] float32, experts [tokens, top_k] int64, balance loss (scalar).
        Effects: adds the choice counts to `load` while training.
        """
        s = self.s
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(x.float(), self.weight).sigmoid()
        choice = (scores + self.e_score_correction_bias).detach()
        groups = choice.view(-1, s.n_group, s.n_routed_experts // s.n_group)
        kept = groups.topk(2, -1)[0].sum(-1).topk(s.topk_group, -1)[1]
        mask = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(1, kept, False)
        experts = groups.masked_fill(mask[..., None], float("-inf")).flatten(1).topk(s.num_experts_per_tok, -1)[1]
        weights = scores.gather(1, experts)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * s.routed_scaling_factor
        if not self.training:
            return weights, experts, scores.new_zeros(())
        counts = torch.bincount(experts.flatten(), minlength=s.n_routed_experts).float()
        self.load += counts
        share = counts * (s.n_routed_experts / counts.sum())
        balance = (share * (scores / scores.sum(-1, keepdim=True)).mean(0)).sum()
        return weights, experts, balance


class MoE(nn.Module):
    """Routed experts plus one shared expert. Tokens are sorted by expert, so each expert is one dense product."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate = Gate(s)
        self.experts = nn.ModuleList(Mlp(s.hidden_size, s.moe_intermediate_size) for _ in range(s.n_routed_experts))
        self.shared_experts = Mlp(s.hidden_size, s.moe_intermediate_size * s.n_shared_experts)
        self.balance: Tensor = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] -> same. Effects: `balance` holds this call's balance loss."""
        flat = x.flatten(0, 1)
        weights, experts, self.balance = self.gate(flat)
        top_k = experts.shape[1]
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=len(self.experts)).tolist()
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        copies = flat[:, None].expand(-1, top_k, -1).reshape(-1, flat.shape[1])
        rows = Permute.apply(copies, order, inverse).split(counts)
        done = torch.cat([expert(part) for expert, part in zip(self.experts, rows, strict=True)])
        done = Permute.apply(done, inverse, order).view(len(flat), top_k, -1)
        mixed = (done * weights[..., None].to(done.dtype)).sum(1)
        return (mixed + self.shared_experts(flat)).view_as(x)


class Block(nn.Module):
    """One decoder layer: attention and a dense or MoE feed-forward, each behind a norm and a residual."""

    def __init__(self, s: Shape, dense: bool) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.self_attn = Attention(s)
        self.post_attention_layernorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.mlp = Mlp(s.hidden_size, s.intermediate_size) if dense else MoE(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, drop: float) -> Tensor:
        """[batch, length, hidden] -> same; `drop` is the channel-dropout probability (0 outside training)."""
        x = x + channel_dropout(self.self_attn(self.input_layernorm(x), cos, sin), drop)
        return x + channel_dropout(self.mlp(self.post_attention_layernorm(x)), drop)


def channel_dropout(x: Tensor, probability: float) -> Tensor:
    """Drop whole channels of a sequence: one mask per (sequence, channel) costs almost no CPU time."""
    if probability == 0.0:
        return x
    mask = (torch.rand(x.shape[0], 1, x.shape[2]) >= probability).to(x.dtype) / (1.0 - probability)
    return x * mask


class MtpBlock(Block):
    """Multi-token prediction: from the hidden state at t and the embedding of token t + 1, predict token t + 2.

    As in DeepSeek's checkpoints: `eh_proj` takes the embedding first, and the hidden state comes in after the main
    model's last norm. Embedding and head are the main model's.
    """

    def __init__(self, s: Shape) -> None:
        super().__init__(s, dense=False)
        self.enorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.hnorm = RMSNorm(s.hidden_size, s.rms_norm_eps)
        self.eh_proj = linear(2 * s.hidden_size, s.hidden_size)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(s.hidden_size, s.rms_norm_eps)})

    def predict(self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor, drop: float) -> Tensor:
        """Normed state for the head; embedded (of t + 1) and hidden (of t) are [batch, length, hidden]."""
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))
        return self.shared_head["norm"](self.forward(x, cos, sin, drop))


class Decoder(nn.Module):
    """Embedding, layers and last norm; `layers[num_hidden_layers]` is the MTP layer, as in the checkpoint."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab_size, s.hidden_size)
        main = [Block(s, dense=i < s.first_k_dense_replace) for i in range(s.num_hidden_layers)]
        self.layers = nn.ModuleList([*main, MtpBlock(s)])
        self.norm = RMSNorm(s.hidden_size, s.rms_norm_eps)


class Storyteller(nn.Module):
    """The whole network; the head is the embedding matrix (tied)."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        self.model = Decoder(shape)
        cos, sin = rope_table(shape, shape.max_position_embeddings)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Normal weights of variance 1 / fan-in; matrices that write to the residual stream start smaller."""
        depth = 2 * (self.shape.num_hidden_layers + 1)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                scale = depth**-0.5 if name.endswith(("o_proj", "down_proj")) else 1.0
                nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)
        # A tied embedding has to be large enough to carry the token through the layers' own noise, while the same
        # numbers as a head want small logits: the last norms start small instead.
        nn.init.normal_(self.model.embed_tokens.weight, std=0.5)
        for norm in (self.model.norm, self.model.layers[-1].shared_head["norm"]):
            nn.init.constant_(norm.weight, 0.1)

    def hidden(self, ids: Tensor, drop: float = 0.0) -> Tensor:
        """Hidden states after the last norm, [batch, length, hidden]; ids [batch, length] int64."""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers[:-1]:
            x = layer(x, cos, sin, drop)
        return self.model.norm(x)

    def mtp_hidden(self, next_ids: Tensor, hidden: Tensor, drop: float = 0.0) -> Tensor:
        """MTP states for the head; next_ids [batch, length] are the tokens one after those of `hidden`."""
        cos, sin = self.cos[: next_ids.shape[1]], self.sin[: next_ids.shape[1]]
        return self.model.layers[-1].predict(self.model.embed_tokens(next_ids), hidden, cos, sin, drop)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def losses(self, ids: Tensor, drop: float, balance: float) -> tuple[Tensor, Tensor, Tensor]:
        """Training losses on windows `ids` [batch, length + 2].

        Returns: mean next-token loss, mean MTP loss, weighted balance loss (to be added).
        """
        inputs, first, second = ids[:, :-2], ids[:, 1:-1], ids[:, 2:]
        hidden = self.hidden(inputs, drop)
        head = self.model.embed_tokens.weight
        low = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        main = LinearCrossEntropy.apply(hidden.flatten(0, 1), head, first.flatten(), low)
        ahead = self.mtp_hidden(first, hidden, drop)
        mtp = LinearCrossEntropy.apply(ahead.flatten(0, 1), head, second.flatten(), low)
        moes = [layer.mlp for layer in self.model.layers if isinstance(layer.mlp, MoE)]
        return main, mtp, balance * sum((m.balance for m in moes), torch.zeros(()))
