"""Products of a layer, and places where scales can be folded between them. Names only, from the configuration.

    latent attention:   input_layernorm ──► q_a, kv_a     q_a_layernorm ──► q_b     value rows of kv_b ──► o_proj
                        and with them, exactly: an indexer's wk, weights_proj and wq_b
                        (no fold ──► kv_b: its activations are not rounded, so that no range is worth moving)
    grouped attention:  input_layernorm ──► q, k, v       v ──► o_proj, a channel to the columns of a group's heads
    post_attention_layernorm ──► gate/up of the dense net, or of all experts and the shared ones; the router exactly
    up ──► down of every net but clamped ones     enorm, hnorm ──► eh_proj     shared_head.norm ──► a draft's own head

A model's last norm is folded into the head only where no draft layer reads the stream behind it.
"""

import re
from dataclasses import dataclass

from serving.model.architecture import Architecture, AttentionShape, DenseShape, GroupedShape, LatentShape
from serving.model.tensors import INDEXER


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices that multiply the same input, side by side in one call.

    Args:
        recorded: what the product is called when a model is assembled.
        matrices: tensor names without `.weight`.
        expert: number of the routed expert that it belongs to.
    """

    recorded: str
    matrices: tuple[str, ...]
    expert: int | None = None

    @property
    def operator(self) -> str:
        """Name of its operator class."""
        return class_of(self.matrices[0]).name

    @property
    def weight_only(self) -> bool:
        """Whether its activations are not rounded."""
        return class_of(self.matrices[0]).weight_only


@dataclass(frozen=True, slots=True)
class Producer:
    """A tensor whose rows give channels of a product's input.

    Args:
        tensor: a norm's weight or a matrix, with `.weight`.
        rows: that are divided; None = all.
        first_channel: of the fold, that the first of these rows gives.
        bias: that is added to the rows' results, and divided with them; None = there is none.
    """

    tensor: str
    rows: tuple[int, ...] | None = None
    first_channel: int = 0
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """A place where a scale per channel can move out of activations and into weights.

    Args:
        producers: divided by the scale.
        products: multiplied by it; all that read the channels and may be quantised.
        exact: other matrices that read them and are multiplied too, `.weight` names.
        reads: the channel that each column of the products reads; None = each its own.
    """

    producers: tuple[Producer, ...]
    products: tuple[Product, ...]
    exact: tuple[str, ...] = ()
    reads: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """Products and folds of one layer."""

    products: tuple[Product, ...]
    folds: tuple[Fold, ...]

    def __add__(self, other: "Structure") -> "Structure":
        return Structure(self.products + other.products, self.folds + other.folds)


def block_structure(config: Architecture, layer: int) -> Structure:
    """One transformer block."""
    prefix = f"model.layers.{layer}."
    shape = config.layer(layer)
    attention = _attention(shape.attention, prefix + "self_attn.", prefix + "input_layernorm.weight")
    norm, mlp = prefix + "post_attention_layernorm.weight", prefix + "mlp."
    if isinstance(shape.feed, DenseShape):
        nets, exact = [_net(mlp)], tuple[str, ...]()
    else:
        linear = shape.feed.clamped is None
        nets = [_net(f"{mlp}experts.{expert}.", expert, linear=linear) for expert in range(shape.feed.experts)]
        nets += [_net(mlp + "shared_experts.")] if shape.feed.shared_width else []
        exact = (mlp + "gate.weight",)
    into = tuple(net.products[0] for net in nets)
    feed = Structure((), (Fold((Producer(norm),), into, exact),))
    return sum(nets, attention + feed)


def draft_structure(config: Architecture, layer: int, *, own_head: bool) -> Structure:
    """Parts of a draft layer besides its block.

    Args:
        own_head: whether the checkpoint brings a head for it.
    """
    prefix = f"model.layers.{layer}."
    fuse = Product(prefix + "eh_proj", (prefix + "eh_proj",))
    norms = (Producer(prefix + "enorm.weight"), Producer(prefix + "hnorm.weight", None, config.hidden_size))
    found = Structure((fuse,), (Fold(norms, (fuse,)),))
    if own_head:
        head = Product(prefix + "shared_head.head", (prefix + "shared_head.head",))
        found += Structure((head,), (Fold((Producer(prefix + "shared_head.norm.weight"),), (head,)),))
    return found


def head_structure(*, drafts: bool) -> Structure:
    """The model's head.

    Args:
        drafts: whether draft layers read the last hidden state too.
    """
    head = Product("lm_head", ("lm_head",))
    return Structure((head,), () if drafts else (Fold((Producer("model.norm.weight"),), (head,)),))


def _attention(shape: AttentionShape, prefix: str, norm: str) -> Structure:
    return _latent(shape, prefix, norm) if isinstance(shape, LatentShape) else _grouped(shape, prefix, norm)


def _grouped(shape: GroupedShape, prefix: str, norm: str) -> Structure:
    into = Product(prefix + "into", (prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"))
    out = Product(prefix + "o_proj", (prefix + "o_proj",))
    values = Producer(prefix + "v_proj.weight", bias=prefix + "v_proj.bias" if shape.input_bias else None)
    folds = Fold((Producer(norm),), (into,)), Fold((values,), (out,), reads=_shared_channels(shape))
    return Structure((into, out), folds)


def _shared_channels(shape: GroupedShape) -> tuple[int, ...]:
    """The value channel that each column of o_proj reads: the same for all query heads of a group."""
    width, group = shape.head_dim, shape.heads // shape.kv_heads
    return tuple(head // group * width + i for head in range(shape.heads) for i in range(width))


def _latent(shape: LatentShape, prefix: str, norm: str) -> Structure:
    first = "q_proj" if shape.query_latent is None else "q_a_proj"
    into = Product(prefix + "into", (prefix + first, prefix + "kv_a_proj_with_mqa"))
    stream, queries = _indexer_reads(shape, prefix)
    out = Product(prefix + "o_proj", (prefix + "o_proj",))
    expand = Product(prefix + "expand", (prefix + "kv_b_proj",))
    values = Producer(prefix + "kv_b_proj.weight", _value_rows(shape))
    found = Structure((into, expand, out), (Fold((Producer(norm),), (into,), stream), Fold((values,), (out,))))
    if shape.query_latent is not None:
        up = Product(prefix + "query_up", (prefix + "q_b_proj",))
        found += Structure((up,), (Fold((Producer(prefix + "q_a_layernorm.weight"),), (up,), queries),))
    return found


def _indexer_reads(shape: LatentShape, prefix: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Matrices of a layer's own indexer that read the stream, and those that read the query latent."""
    if shape.indexer is None or shape.indexer.shared:
        return (), ()
    own = prefix + INDEXER
    return (own + "wk.weight", own + "weights_proj.weight"), (own + "wq_b.weight",)


def _value_rows(shape: LatentShape) -> tuple[int, ...]:
    nope, value = shape.nope_dim, shape.value_dim
    return tuple(head * (nope + value) + nope + i for head in range(shape.heads) for i in range(value))


def _net(prefix: str, expert: int | None = None, *, linear: bool = True) -> Structure:
    into = Product(prefix + "gate_up", (prefix + "gate_proj", prefix + "up_proj"), expert)
    down = Product(prefix + "down_proj", (prefix + "down_proj",), expert)
    fold = Fold((Producer(prefix + "up_proj.weight"),), (down,))
    return Structure((into, down), (fold,) if linear else ())


# Mixed precision: which operators compute in INT8, and why the others do not. Pure: no torch.
#
# Source: the CloudMatrix384 paper, section 4.5 (INT8 for the large products of attention and feed-forward nets, more
# precision for small sensitive parts); which parts exactly is our choice, stated here line by line.


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """Operators with the same treatment.

    Args:
        name: as options and reports call it.
        matrices: what belongs to it, for people.
        pattern: of the module names that belong to it, matched from their start.
        why: the reason for its precision.
        weight_only: whether activations stay as they are (W8A16) instead of being rounded per token (W8A8).
    """

    name: str
    matrices: str
    pattern: str
    why: str
    weight_only: bool = False


INT8_CLASSES = (
    OperatorClass(
        "experts", "routed experts' gate, up, down", r".*\.mlp\.experts\.\d+\..*_proj", "nearly all weights of a model"
    ),
    OperatorClass("shared_experts", "shared experts' gate, up, down", r".*\.mlp\.shared_experts\..*", "on every token"),
    OperatorClass("dense_ffn", "dense layers' gate, up, down", r".*\.mlp\.(gate|up|down)_proj", "on every token"),
    OperatorClass(
        "attention_in",
        "q_proj, k_proj, v_proj, q_a_proj, kv_a_proj_with_mqa",
        r".*\.self_attn\.(q_a_proj|q_proj|k_proj|v_proj|kv_a_proj_with_mqa)",
        "those there are, in one product",
    ),
    OperatorClass("query_up", "q_b_proj", r".*\.self_attn\.q_b_proj", "on every token"),
    OperatorClass(
        "latent_up",
        "kv_b_proj",
        r".*\.self_attn\.kv_b_proj",
        "weights alone, since decode absorbs it and prompts expand with it",
        weight_only=True,
    ),
    OperatorClass("attention_out", "o_proj", r".*\.self_attn\.o_proj", "the largest product of attention"),
    OperatorClass("draft_fuse", "draft layers' eh_proj", r".*\.eh_proj", "a wrong draft costs time only"),
    OperatorClass("head", "lm_head, draft layers' own heads", r"lm_head|.*\.shared_head\.head", "read whole each step"),
)
"""Stored as INT8 unless `--keep` names them."""

KEPT_CLASSES = (
    OperatorClass("gate", "routers", r".*\.mlp\.gate", "small, and they decide; stored in float32"),
    OperatorClass("indexer", "indexers of sparse attention", r".*\.indexer\..*", "small, and they decide"),
    OperatorClass("embeddings", "embed_tokens", r".*embed_tokens", "looked up, never multiplied"),
    OperatorClass("norms", "all norms", r".*norm", "vectors"),
)
"""Never INT8."""


def class_of(module: str) -> OperatorClass:
    """The class of a matrix.

    Args:
        module: its tensor's name without `.weight`.
    """
    for operator in (*INT8_CLASSES, *KEPT_CLASSES):
        if re.fullmatch(operator.pattern, module):
            return operator
    raise AssertionError(f"{module} belongs to no operator class")


def ignore_patterns(kept: frozenset[str]) -> list[str]:
    """compressed-tensors' `ignore` list: the modules that are not INT8.

    Args:
        kept: names of the classes that were kept on request.
    """
    always = [operator.pattern for operator in KEPT_CLASSES if operator.name in ("gate", "indexer")]
    asked = [operator.pattern for operator in INT8_CLASSES if operator.name in kept]
    return [f"re:^({pattern})$" for pattern in (*always, *asked)]


def class_table() -> str:
    """The table for `--help`, one line a class."""
    lines = [f"  {o.name:<15} INT8     {o.matrices}: {o.why}" for o in INT8_CLASSES]
    return "\n".join(lines + [f"  {o.name:<15} as it is {o.matrices}: {o.why}" for o in KEPT_CLASSES])
