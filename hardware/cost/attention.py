"""Attention of a layer in the cost model: weights, what a cached token takes, operations.

Two kinds. Latent attention (MLA) caches one compressed row that all heads share; decode folds the matrices that would
expand it into queries and outputs (absorption). Grouped attention caches a key and a value for each KV head. Both have
fields with the same names and meanings, so a step handles them alike.

Either may read less than the whole context: latent attention what an indexer chose, grouped attention a window.
"""

from dataclasses import dataclass

from hardware.units import Flops

# Context range of core attention: at all of a context, at a window of it, or at tokens that an indexer chose.


@dataclass(frozen=True, slots=True)
class ContextReach:
    """Tokens that core attention of a layer reads, mean over a model's layers.

    Attributes:
        limit: most tokens that a limited layer reads for one token; None = no layer is limited.
        share: limited layers among all.
    """

    limit: int | None = None
    share: float = 1.0

    def tokens(self, context: float) -> float:
        """Tokens read for one token that has a context.

        Args:
            context: tokens; of several sequences their mean, which reads at least as many as they do.
        """
        if self.limit is None or context <= self.limit:
            return context
        return self.share * self.limit + (1 - self.share) * context

    def prompt_tokens(self, attended: float, first: float = 0.0) -> float:
        """Tokens read for each token of a prompt, mean over them.

        Args:
            attended: mean context of the computed tokens, distributed evenly around it.
            first: context of the first one; 0 = no cached prefix.
        """
        if self.limit is None:
            return attended
        low = min(first, attended)
        high = 2 * attended - low
        if high <= self.limit:
            return attended
        if low >= self.limit:
            return self.tokens(attended)
        read = ((self.limit**2 - low**2) / 2 + self.limit * (high - self.limit)) / (high - low)
        return self.share * read + (1 - self.share) * attended


EVERYTHING = ContextReach()


# Attention of a layer in the cost model: weights, what a cached token takes, operations.

BF16_BYTES = 2
INT8_BYTES = 1
SCALE_BYTES = 4
"""One float32."""


@dataclass(frozen=True, slots=True)
class IndexerSizes:
    """The part of sparse attention that chooses: heads of its own score each cached token by one small key.

    All of it is BF16, as the serving engine keeps it; DeepSeek's own computes scores in FP8.

    Attributes:
        top_k: tokens that each token reads at most.
        layers: those that choose; each other one takes the choice of the last layer before it that does.
    Source: DeepSeek-V3.2-Exp report, section 1: equation 1 is the score, equation 2 the choice.
    """

    heads: int
    dim: int
    top_k: int
    layers: int

    def weights(self, hidden: int, q_rank: int) -> int:
        """Queries from the compressed query, one key and a weight for each head from the hidden state."""
        return q_rank * self.heads * self.dim + hidden * (self.dim + self.heads)

    @property
    def score_flops(self) -> Flops:
        """Matrix products of one new token and one cached token."""
        return Flops(2.0 * self.heads * self.dim)

    @property
    def score_vector_flops(self) -> Flops:
        """Element-wise operations of one new token and one cached token.

        ReLU, weight and sum for each head, then a choice of the best in passes over their scores.
        """
        return Flops(3.0 * self.heads + CHOICE_FLOPS)


CHOICE_FLOPS = 8
"""Of each score in a radix selection: four passes of a byte, a shift and a count each. Assumed."""


@dataclass(frozen=True, slots=True)
class LatentAttentionSizes:
    """Multi-head latent attention, as in DeepSeek-V2.

    Attributes:
        q_rank: width of the compressed query; 0 when queries are projected directly.
        kv_rank: width of the cached latent.
        rope_dim: rotated part of a key, which all heads share, and of each query.
        indexer: chooses the tokens that are read; None = all are.
    """

    heads: int
    q_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    indexer: IndexerSizes | None = None

    def prolog_weights(self, hidden: int) -> int:
        """Query and latent projections: all weights before core attention, without the absorbed matrices."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        q = hidden * self.q_rank + self.q_rank * queries if self.q_rank else hidden * queries
        return q + hidden * (self.kv_rank + self.rope_dim)

    def die_prolog_weights(self, hidden: int, tp: int) -> float:
        """Those of `prolog_weights` that one of `tp` dies has: its heads' queries, and all down-projections."""
        down = hidden * (self.q_rank + self.kv_rank + self.rope_dim)
        return down + (self.prolog_weights(hidden) - down) / tp

    def cache_parts(self, tp: int) -> int:
        """Parts into which `tp` dies split a token's cache: one, as all heads read the same latent."""
        return 1

    def splits_into(self, tp: int) -> bool:
        """Whether `tp` dies can have equal numbers of heads."""
        return self.heads % tp == 0

    @property
    def key_up_weights(self) -> int:
        """Latent to keys; decode folds it into the query (absorption), in BF16."""
        return self.heads * self.nope_dim * self.kv_rank

    @property
    def value_up_weights(self) -> int:
        """Latent to values; decode applies it to the output (absorption), in BF16."""
        return self.heads * self.v_dim * self.kv_rank

    @property
    def head_weights(self) -> int:
        """Projections out of the compressed query and the latent, of which prefill by heads needs its own heads' only.

        Source: CloudMatrix384 paper 4.3.1: between the two exchanges, up-projections and core attention are split by
            heads, without absorption.
        """
        queries = self.q_rank * self.heads * (self.nope_dim + self.rope_dim)
        return queries + self.key_up_weights + self.value_up_weights

    @property
    def result_values(self) -> int:
        """Values that core attention gives for one token: the input of the output projection."""
        return self.heads * self.v_dim

    @property
    def attended_values(self) -> int:
        """Cached values of one token that core attention reads."""
        return self.kv_rank + self.rope_dim

    @property
    def cached_values(self) -> int:
        """Cached values of one token, the indexer's key included."""
        return self.attended_values + (self.indexer.dim if self.indexer else 0)

    def reach(self, layers: int) -> ContextReach:
        """Tokens that core attention reads in a model of that many layers: without an indexer all."""
        return ContextReach(self.indexer.top_k) if self.indexer else EVERYTHING

    @property
    def gathered_values(self) -> int:
        """Values of one token that every die of a prefill instance gets: compressed queries, and its cache row."""
        return self.q_rank + self.cached_values

    @property
    def exchanged_values(self) -> int:
        """Values of one token that prefill sends between the dies of its heads and the die of its position."""
        return self.result_values

    def attended_bytes(self, *, int8: bool = False) -> int:
        """Bytes of one cached token that core attention reads in one layer; as `token_bytes`, without indexer's key."""
        return self.token_bytes(int8=int8) - (self.indexer.dim * BF16_BYTES if self.indexer else 0)

    def token_bytes(self, *, int8: bool = False) -> int:
        """Cache of one token in one layer.

        Args:
            int8: the latent as INT8, its rotary part (xDeepServe) and an indexer's key still BF16; else all BF16.
        """
        return self.kv_rank * (INT8_BYTES if int8 else BF16_BYTES) + (self.cached_values - self.kv_rank) * BF16_BYTES

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
    """Grouped-query attention: several query heads read the keys and values of one KV head.

    Attributes:
        window: most tokens visible to a token in a layer with a window, the last ones.
        windowed_layers: how many layers have it.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    windowed_layers: int = 0

    def prolog_weights(self, hidden: int) -> int:
        """Query, key and value projections: all weights before core attention."""
        return hidden * (self.heads + 2 * self.kv_heads) * self.head_dim

    def die_prolog_weights(self, hidden: int, tp: int) -> float:
        """Those of `prolog_weights` that one of `tp` dies has; KV heads are copied where there are too few of them."""
        return hidden * (self.heads / tp + 2 * self.kv_heads / self.cache_parts(tp)) * self.head_dim

    def cache_parts(self, tp: int) -> int:
        """Parts into which `tp` dies split a token's cache: whole KV heads."""
        return min(tp, self.kv_heads)

    def splits_into(self, tp: int) -> bool:
        """Whether `tp` dies can have equal numbers of heads and of KV heads."""
        return self.heads % tp == 0 and (self.kv_heads % tp == 0 or tp % self.kv_heads == 0)

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
    def attended_values(self) -> int:
        """Cached values of one token that core attention reads: all."""
        return self.cached_values

    def reach(self, layers: int) -> ContextReach:
        """Tokens that core attention reads in a model of that many layers: where there is a window, those inside it."""
        return ContextReach(self.window, self.windowed_layers / layers) if self.windowed_layers else EVERYTHING

    @property
    def gathered_values(self) -> int:
        """Values of one token that every die of a prefill instance gets: its cache row."""
        return self.cached_values

    @property
    def exchanged_values(self) -> int:
        """Values of one token that prefill sends between dies: queries to the dies of their heads, results back."""
        return 2 * self.result_values

    def attended_bytes(self, *, int8: bool = False) -> int:
        """Bytes of one cached token that core attention reads in one layer: all."""
        return self.token_bytes(int8=int8)

    def token_bytes(self, *, int8: bool = False) -> int:
        """Cache of one token in one layer.

        Args:
            int8: keys and values as INT8, each with a float32 scale for each KV head; else BF16.
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
