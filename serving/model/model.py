"""The whole model: from tokens and cache to hidden states and logits. Independent of sequences and requests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from serving.model.architecture import Architecture
from serving.model.batch import ForwardBatch
from serving.model.block import Block
from serving.model.kv_cache import KvCache
from serving.model.linear import Linear
from serving.model.mtp import MtpLayer
from serving.model.norm import RmsNorm
from serving.model.rope import Rope


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
