"""A model's architecture as frozen values: the only view of a checkpoint's `config.json` in the rest of the package.

Each family's module (`families/`) builds one from its own keys; no other code depends on a model's name. Widths are
counted in elements, lengths in tokens. Imports no torch, so that the gateway can read the vocabulary and the end tokens
without the tensor library.
"""

from dataclasses import dataclass

from serving.model.quantization import Quantization
from serving.model.rope_config import RopeConfig
from serving.values.expert_map import GateRule


@dataclass(frozen=True, slots=True)
class LatentRow:
    """One token's entry in one layer of the KV cache: a latent that all heads read, then their rotated key.

    Args:
        index: width of the indexer's key, which comes last; 0 = no indexer.
    """

    latent: int
    rope: int
    index: int = 0

    @property
    def attended(self) -> int:
        """Number of leading elements that attention reads."""
        return self.latent + self.rope

    @property
    def elements(self) -> int:
        """Number of elements in the row."""
        return self.attended + self.index


@dataclass(frozen=True, slots=True)
class GroupedRow:
    """One token's entry in one layer of the KV cache: the value and the rotated key of each KV head."""

    heads: int
    head_dim: int

    @property
    def elements(self) -> int:
        """Numbers of the row."""
        return 2 * self.heads * self.head_dim


CacheRow = LatentRow | GroupedRow


@dataclass(frozen=True, slots=True)
class IndexerShape:
    """DeepSeek's sparse attention: in a long context, heads attend only to tokens chosen by a small scorer.

    Args:
        heads: number of query heads; all read one key per token.
        rope_dim: elements of a head that rotate, its first ones in the checkpoint.
        interleave: whether their pairs are adjacent in the checkpoint.
        top_k: number of chosen tokens; a context of at most this length is read whole.
        shared: the layer reuses the choice of the nearest earlier layer that makes one.
        norm_eps: epsilon of the key's norm.
    """

    heads: int
    head_dim: int
    rope_dim: int
    interleave: bool
    top_k: int
    shared: bool = False
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Multi-head latent attention (MLA): keys and values are expanded from one latent per token.

    Args:
        query_latent: width of the latent from which queries are expanded; None = they are projected directly.
        nope_dim, rope_dim: parts of a query's or key's head without and with rotary positions.
        scale: factor on attention scores.
        bias: whether the projections into latents and the output have a bias.
        norm_eps: epsilon of the latents' norms.
        indexer: chooses the tokens to read; None = all are read.
    """

    heads: int
    query_latent: int | None
    latent: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    scale: float
    bias: bool = False
    norm_eps: float = 1e-6
    indexer: IndexerShape | None = None

    @property
    def query_dim(self) -> int:
        """Width of one query or key head."""
        return self.nope_dim + self.rope_dim

    @property
    def row(self) -> LatentRow:
        """One token's entry in the KV cache."""
        return LatentRow(self.latent, self.rope_dim, 0 if self.indexer is None else self.indexer.head_dim)


@dataclass(frozen=True, slots=True)
class GroupedShape:
    """Multi-head attention whose query heads share key and value heads in groups.

    Args:
        rope_dim: elements of a head that rotate, its first ones in the checkpoint; 0 = a layer without positions.
        scale: factor on attention scores.
        input_bias: whether the projections to queries, keys and values have a bias.
        head_norm: whether each query and key is normalised, head by head, before it rotates.
        window: number of latest tokens that a token attends to, including itself; None = all before it.
        sinks: whether each query head has a learned score that takes part in the softmax without a value.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int
    scale: float
    input_bias: bool = False
    output_bias: bool = False
    head_norm: bool = False
    window: int | None = None
    sinks: bool = False

    @property
    def row(self) -> GroupedRow:
        """One token's entry in the KV cache."""
        return GroupedRow(self.kv_heads, self.head_dim)


AttentionShape = LatentShape | GroupedShape


@dataclass(frozen=True, slots=True)
class DenseShape:
    """One feed-forward net for all tokens."""

    width: int


@dataclass(frozen=True, slots=True)
class GateShape:
    """How experts are chosen and weighted.

    Args:
        sigmoid: scores are sigmoids, and a group counts as its two best experts; else softmax, and its best one.
        choice_bias: whether a learned bias takes part in the choice, not in the weights.
        groups, kept_groups: only experts of the best groups may be chosen; one group = no restriction.
        normalise: the weights of the chosen experts sum to `factor`.
        bias: whether the product that scores experts has a bias.
    """

    sigmoid: bool
    choice_bias: bool
    groups: int
    kept_groups: int
    normalise: bool
    factor: float
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """A network with the gate `(up + 1) * gate * sigmoid(alpha * gate)` in place of `silu(gate) * up`.

    Args:
        limit: clamps gate from above and up on both sides, before this product.
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """Routed experts, a few of which process each token, and a shared network for all tokens.

    Args:
        shared_width: of the shared network; 0 = none.
        bias: whether the products of a routed expert have a bias.
        clamped: clamped gate of routed experts; None = plain SwiGLU.
    """

    experts: int
    per_token: int
    width: int
    shared_width: int
    gate: GateShape
    bias: bool = False
    clamped: ClampedGate | None = None

    @property
    def rule(self) -> GateRule:
        """How gates choose experts, for a group of ranks."""
        gate = self.gate
        return GateRule(self.per_token, gate.groups, gate.kept_groups, 2 if gate.sigmoid and gate.groups > 1 else 1)


FeedShape = DenseShape | ExpertShape


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One transformer block: attention and feed-forward, each applied to the normalised stream and added to it."""

    attention: AttentionShape
    feed: FeedShape


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """Longest context for which this implementation is complete.

    Args:
        beyond: what the model does in longer contexts; completes "beyond N tokens".
        computed_by: the setting that enables longer contexts; empty = none.
    """

    tokens: int
    beyond: str
    computed_by: str = ""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shape and switches of a model.

    Args:
        model_type: from `config.json`; for names and messages only.
        drafts: multi-token-prediction layers that the configuration names.
        dtype: `bfloat16` or `float32`: the meaning of `dtype="auto"`.
        quantization: how the checkpoint stores its matrices.
        max_position_embeddings: longest context that is served.
        computed_up_to: why that is less than the model's own; None = it is the model's own.
        unused: substrings of the names of tensors that may be present and are not needed.
        bf16_results: not from the checkpoint: the result of a routed expert is rounded to bfloat16 before it is
            weighted and added, as if experts were on other devices and sent results of that type.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerShape, ...]
    drafts: tuple[LayerShape, ...]
    rope: RopeConfig
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    quantization: Quantization
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    computed_up_to: "ContextLimit | None" = None
    unused: tuple[str, ...] = ()
    bf16_results: bool = False

    @property
    def attention(self) -> AttentionShape:
        """Attention of the first layer; the heads and the cache row are the same in all layers."""
        return self.layers[0].attention

    @property
    def row(self) -> CacheRow:
        """One token's entry in the KV cache, in each layer."""
        return self.attention.row

    @property
    def indexer(self) -> IndexerShape | None:
        """Indexer of the first layer, which chooses the tokens that attention reads in long contexts; None = all."""
        return self.attention.indexer if isinstance(self.attention, LatentShape) else None

    @property
    def experts(self) -> ExpertShape | None:
        """Routed experts of the layers that have them; None in a dense model."""
        feeds = (layer.feed for layer in self.layers + self.drafts)
        return next((feed for feed in feeds if isinstance(feed, ExpertShape)), None)

    @property
    def expert_count(self) -> int:
        """Number of routed experts of a layer that has them; 0 in a dense model."""
        return 0 if self.experts is None else self.experts.experts

    @property
    def rope_dim(self) -> int:
        """Rotating elements of a head, in the layers that rotate."""
        return max(layer.attention.rope_dim for layer in self.layers)

    def layer(self, index: int) -> LayerShape:
        """A layer by its number in the checkpoint, where draft layers follow the model's layers."""
        return (self.layers + self.drafts)[index]
