"""The multi-token-prediction layer: predicts, from a token's hidden state and the next token, the one after that.

    hidden' = block(eh_proj(cat(enorm(embed(next token)), hnorm(hidden))))
    logits' = head(norm(hidden'))

The block keeps its rows in the KV cache, in the layer after the model's last.
"""

import torch
from torch import Tensor

from serving.model.batch import ForwardBatch
from serving.model.block import Block
from serving.model.kv_cache import KvCache
from serving.model.linear import Linear
from serving.model.norm import RmsNorm
from serving.model.rope import Rope


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
