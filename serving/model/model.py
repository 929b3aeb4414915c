"""The whole model: from tokens and cache to hidden states and logits. Independent of sequences and requests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from serving.model.architecture import Architecture
from serving.model.batch import ForwardBatch
from serving.model.experts import ExpertLayer
from serving.model.grouped_attention import GroupedAttention
from serving.model.kv_cache import KvCache
from serving.model.latent_attention import LatentAttention
from serving.model.layers import Mlp, RmsNorm
from serving.model.linear import Linear
from serving.model.rope import Rope

# One transformer block.


class Block:
    """Attention and feed-forward, each applied to the normalised stream and added to it."""

    def __init__(
        self,
        attention_norm: RmsNorm,
        attention: LatentAttention | GroupedAttention,
        feed_norm: RmsNorm,
        feed: Mlp | ExpertLayer,
    ) -> None:
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_norm = feed_norm
        self.feed = feed

    def __call__(self, x: Tensor, rotations: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`; writes the tokens' rows into the cache."""
        x = x + self.attention(self.attention_norm(x), rotations, batch, cache)
        return x.add_(self.feed(self.feed_norm(x)))


# The multi-token-prediction layer: predicts, from a token's hidden state and the next token, the one after that.
#
#     hidden' = block(eh_proj(cat(enorm(embed(next token)), hnorm(hidden))))
#     logits' = head(norm(hidden'))
#
# The block keeps its rows in the KV cache, in the layer after the model's last.


class MtpLayer:
    """One draft layer; embedding and head may be the model's own.

    Args:
        embed: `[vocab, hidden]`.
        fuse: `eh_proj`, 2 hidden -> hidden.
    """

    def __init__(
        self,
        embed: Tensor,
        token_norm: RmsNorm,
        hidden_norm: RmsNorm,
        fuse: Linear,
        block: Block,
        norm: RmsNorm,
        head: Linear,
    ) -> None:
        self.embed = embed
        self.token_norm = token_norm
        self.hidden_norm = hidden_norm
        self.fuse = fuse
        self.block = block
        self.norm = norm
        self.head = head

    def forward(self, hidden: Tensor, batch: ForwardBatch, cache: KvCache, rope: Rope) -> Tensor:
        """Draft hidden states.

        Args:
            hidden: `[tokens, hidden]`, the model's output before its final norm, at each position.
            batch: its `tokens` are the *next* tokens of those positions; positions and slots those of `hidden`.
            cache: must have one layer more than the model.
        Returns: `[tokens, hidden]`, before the draft layer's norm; feeds a further draft layer or `logits`.
        Effects: writes the draft layer's rows into the cache.
        """
        token = self.embed.index_select(0, batch.tokens)
        x = self.fuse(torch.cat((self.token_norm(token), self.hidden_norm(hidden)), -1))
        return self.block(x, rope.rotations(batch.positions), batch, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, hidden] -> [rows, vocab] float32`."""
        return self.head(self.norm(hidden)).float()


# The whole model: from tokens and cache to hidden states and logits. Independent of sequences and requests.


class Model:
    """A loaded checkpoint, ready to compute on one device.

    Args:
        embed: `[vocab, hidden]`.
        mtp: draft layers, empty if the checkpoint has none.
    """

    def __init__(
        self,
        config: Architecture,
        embed: Tensor,
        blocks: Sequence[Block],
        norm: RmsNorm,
        head: Linear,
        mtp: Sequence[MtpLayer] = (),
    ) -> None:
        self.config = config
        self.embed = embed
        self.blocks = tuple(blocks)
        self.norm = norm
        self.head = head
        self.mtp = tuple(mtp)
        self.rope = Rope(config, embed.device)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights, activations and KV cache."""
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embed.device

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """One pass over all tokens of the batch.

        Returns: `[tokens, hidden]`, before the final norm.
        Effects: writes the tokens' rows into the cache.
        """
        x = self.embed.index_select(0, batch.tokens)
        rotations = self.rope.rotations(batch.positions)
        for block in self.blocks:
            x = block(x, rotations, batch, cache)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits of some rows of `forward`'s result: `[rows, hidden] -> [rows, vocab] float32`."""
        return self.head(self.norm(hidden)).float()
