"""Attention of a layer as the cost model sees it: weights, what a cached token takes, operations.

Two kinds. Latent attention (MLA) caches one compressed row that all heads share; decode folds the matrices that would
expand it into queries and outputs (absorption). Grouped attention caches a key and a value for each KV head. Both have
the same fields for the same meaning, so that a step asks neither which of the two it is.
"""

from dataclasses import dataclass

from hardware.units import Flops

BF16_BYTES = 2
INT8_BYTES = 1
SCALE_BYTES = 4
"""One float32."""


@dataclass(frozen=True, slots=True)
class LatentAttentionSizes:
    """Multi-head latent attention, as in DeepSeek-V2.

    Attributes:
        q_rank: width of the compressed query; 0 when queries are projected directly.
        kv_rank: width of the cached latent.
        rope_dim: rotated part of a key, which all heads share, and of each query.
    """

    heads: int
    q_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int

    def prolog_weights(self, hidden: int) -> int:
        """Query and latent projections: everything before core attention, without the absorbed matrices.

        Effects: none.
        """
        queries = self.heads * (self.nope_dim + self.rope_dim)
        q = hidden * self.q_rank + self.q_rank * queries if self.q_rank else hidden * queries
        return q + hidden * (self.kv_rank + self.rope_dim)

    @property
    def key_up_weights(self) -> int:
        """Latent to keys; decode folds it into the query (absorption), in BF16."""
        return self.heads * self.nope_dim * self.kv_rank

    @property
    def value_up_weights(self) -> int:
        """Latent to values; decode applies it to the output (absorption), in BF16."""
        return self.heads * self.v_dim * self.kv_rank

    @property
    def result_values(self) -> int:
        """Values that core attention gives for one token: the input of the output projection."""
        return self.heads * self.v_dim

    @property
    def cached_values(self) -> int:
        """Cached values of one token."""
        return self.kv_rank + self.rope_dim

    @property
    def gathered_values(self) -> int:
        """Values of one token that every die of a prefill instance gets: queries and latents, compressed."""
        return self.q_rank + self.cached_values

    @property
    def exchanged_values(self) -> int:
        """Values of one token that prefill sends between the dies of its heads and the die of its position."""
        return self.result_values

    def token_bytes(self, *, int8: bool = False) -> int:
        """Cache of one token in one layer.

        Args:
            int8: the latent as INT8, its rotary part still BF16 (xDeepServe); else all BF16.
        Effects: none.
        """
        return self.kv_rank * (INT8_BYTES if int8 else BF16_BYTES) + self.rope_dim * BF16_BYTES

    @property
    def decode_core_flops(self) -> Flops:
        """Core attention of one new token and one cached token, with absorbed weights."""
        return Flops(2.0 * self.heads * (2 * self.kv_rank + self.rope_dim))

    @property
    def prefill_core_flops(self) -> Flops:
        """Core attention of one new token and one attended token, as plain multi-head attention."""
        return Flops(2.0 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim))


@dataclass(frozen=True, slots=True)
class GroupedAttentionSizes:
    """Grouped-query attention: several query heads read the keys and values of one KV head."""

    heads: int
    kv_heads: int
    head_dim: int

    def prolog_weights(self, hidden: int) -> int:
        """Query, key and value projections: everything before core attention.

        Effects: none.
        """
        return hidden * (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def key_up_weights(self) -> int:
        """None: keys are cached as they are read."""
        return 0

    @property
    def value_up_weights(self) -> int:
        """None: values are cached as they are read."""
        return 0

    @property
    def result_values(self) -> int:
        """Values that core attention gives for one token: the input of the output projection."""
        return self.heads * self.head_dim

    @property
    def cached_values(self) -> int:
        """Cached values of one token: a key and a value for each KV head."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def gathered_values(self) -> int:
        """Values of one token that every die of a prefill instance gets: its cache row."""
        return self.cached_values

    @property
    def exchanged_values(self) -> int:
        """Values of one token that prefill sends between dies: queries to the dies of their heads, results back."""
        return 2 * self.result_values

    def token_bytes(self, *, int8: bool = False) -> int:
        """Cache of one token in one layer.

        Args:
            int8: keys and values as INT8, each with a float32 scale for each KV head; else BF16.
        Effects: none.
        """
        if int8:
            return 2 * self.kv_heads * (self.head_dim * INT8_BYTES + SCALE_BYTES)
        return self.cached_values * BF16_BYTES

    @property
    def decode_core_flops(self) -> Flops:
        """Core attention of one new token and one cached token."""
        return Flops(2.0 * self.heads * 2 * self.head_dim)

    @property
    def prefill_core_flops(self) -> Flops:
        """Core attention of one new token and one attended token."""
        return self.decode_core_flops


AttentionSizes = LatentAttentionSizes | GroupedAttentionSizes
