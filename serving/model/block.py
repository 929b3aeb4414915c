"""One transformer block."""

from torch import Tensor

from serving.model.batch import ForwardBatch
from serving.model.experts import ExpertLayer
from serving.model.grouped_attention import GroupedAttention
from serving.model.kv_cache import KvCache
from serving.model.latent_attention import LatentAttention
from serving.model.mlp import Mlp
from serving.model.norm import RmsNorm


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
