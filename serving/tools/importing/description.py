"""Model of a GGUF file as its checkpoint describes it: config.json and parts, before any tensor is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.tools.importing.gguf_file import GgufFile, StoredTensor, is_readable
from serving.tools.importing.gguf_keys import ArchitectureKeys

# Parts of a checkpoint: the tensors of a GGUF file from which each tensor of a Hugging Face folder is made, and how.
#
# llama.cpp's converter changes some: rows of Llama's queries and keys so that rotated pairs are neighbours, experts
# into one tensor for all, DeepSeek's expansion of latents into one for keys and one for values. This module reverses
# that.

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors of a file, and their conversion.

    Args:
        sources: shapes that the file's tensors must have, by name.
        make: tensors of the checkpoint, float32; called with the sources in their order.
    """

    sources: Mapping[str, Shape]
    make: Callable[[Sequence[StoredTensor]], Named]


def same(source: str, shape: Shape, target: str) -> Part:
    """A renamed tensor."""
    return Part({source: shape}, lambda stored: iter([(target, stored[0].read())]))


def halves(source: str, shape: Shape, target: str, heads: int) -> Part:
    """Rows whose rotated pairs are neighbours, put back into halves of each head.

    Args:
        shape: `[heads * width, ...]`.
    """

    def make(stored: Sequence[StoredTensor]) -> Named:
        value = stored[0].read()
        pairs = value.reshape(heads, shape[0] // heads // 2, 2, -1)
        yield target, pairs.transpose(1, 2).reshape(value.shape)

    return Part({source: shape}, make)


def experts(source: str, shape: Shape, target: str) -> Part:
    """Matrices of all experts in one tensor, read one by one.

    Args:
        shape: `[experts, rows, columns]`.
        target: with `{}` for the expert's number.
    """

    def make(stored: Sequence[StoredTensor]) -> Named:
        for expert in range(shape[0]):
            yield target.format(expert), stored[0].read(expert)

    return Part({source: shape}, make)


def expansion(keys: tuple[str, Shape], values: tuple[str, Shape], target: str) -> Part:
    """DeepSeek's `kv_b_proj` of its two parts.

    Args:
        keys: name and `[heads, latent, width of a key's part without position]`.
        values: name and `[heads, width of a value, latent]`.
    """

    def make(stored: Sequence[StoredTensor]) -> Named:
        key, value = (one.read() for one in stored)
        both = torch.cat([key.transpose(1, 2), value], dim=1)
        yield target, both.reshape(-1, both.shape[-1])

    return Part(dict([keys, values]), make)


def check(file: GgufFile, parts: Sequence[Part], ignored: frozenset[str]) -> None:
    """Compare a file's tensors with those required by its keys.

    Args:
        ignored: names of others that it may have.
    Raises: ModelError naming those that are missing, unexpected, wrongly shaped or of a kind that is not read.
    """
    wanted = {name: shape for part in parts for name, shape in part.sources.items()}
    there = file.tensors
    wrong = [
        f"{name} {list(there[name].shape)} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in there and there[name].shape != shape
    ]
    unread = [f"{name} ({there[name].kind.name})" for name in wanted if name in there and not _readable(there[name])]
    problems = (
        ("it lacks", [name for name in wanted if name not in there]),
        ("it has unexpected", sorted(there.keys() - wanted.keys() - ignored)),
        ("it has wrongly shaped", wrong),
        ("of a kind that is not read are", unread),
    )
    found = [f"{verb} {_listed(names)}" for verb, names in problems if names]
    if found:
        raise ModelError("; ".join(found))


def _readable(tensor: StoredTensor) -> bool:
    return is_readable(tensor.kind)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


# Model of a GGUF file as its checkpoint describes it: config.json and parts, before any tensor is read.

EMBEDDING = "token_embd.weight"
_HEAD = "output.weight"


@dataclass(frozen=True, slots=True)
class Description:
    """A model.

    Args:
        config: for config.json, without the tokenizer's keys.
        parts: of the checkpoint.
        ignored: names of tensors that are not needed, or were used for the configuration.
    """

    config: dict[str, object]
    parts: Sequence[Part]
    ignored: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class ModelFrame:
    """Sizes that every architecture has."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    feed_width: int
    tied: bool

    @classmethod
    def of(cls, file: GgufFile, keys: ArchitectureKeys) -> "ModelFrame":
        """Read them.

        Raises: ModelError if a key is missing or contradicts the tensors.
        """
        if EMBEDDING not in file.tensors:
            raise ModelError(f"it lacks {EMBEDDING}")
        rows = file.tensors[EMBEDDING].shape[0]
        if keys.whole("vocab_size", rows) != rows:
            raise ModelError(f"its vocabulary has {keys.whole('vocab_size')} tokens, and {EMBEDDING} {rows} rows")
        layers = keys.whole("block_count")
        if layers > len(file.tensors):
            raise ModelError(f"it has {layers} layers, and only {len(file.tensors)} tensors")
        keys.pass_over("tensor_data_layout")
        if not keys.flag("attention.causal", True):
            raise ModelError("its attention is not causal: it generates no text")
        return cls(
            vocab_size=rows,
            hidden_size=keys.whole("embedding_length"),
            layers=layers,
            heads=keys.whole("attention.head_count"),
            feed_width=keys.whole("feed_forward_length"),
            tied=_HEAD not in file.tensors,
        )

    def ends(self) -> list[Part]:
        """Embedding, last norm and head."""
        matrix = (self.vocab_size, self.hidden_size)
        head = [] if self.tied else [same(_HEAD, matrix, "lm_head.weight")]
        norm = same("output_norm.weight", (self.hidden_size,), "model.norm.weight")
        return [same(EMBEDDING, matrix, "model.embed_tokens.weight"), norm, *head]

    def config(self, keys: ArchitectureKeys) -> dict[str, object]:
        """The keys of every config.json."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.feed_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_act": "silu",
            "max_position_embeddings": keys.whole("context_length"),
            "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": self.tied,
        }


def net(block: str, mlp: str, suffix: str, width: int, hidden: int) -> list[Part]:
    """A feed-forward net: gate, up and down.

    Args:
        block, mlp: prefixes of its tensors' names in the file and in the checkpoint.
        suffix: of the names in the file, before `.weight`.
    """
    return [
        same(f"{block}ffn_gate{suffix}.weight", (width, hidden), f"{mlp}gate_proj.weight"),
        same(f"{block}ffn_up{suffix}.weight", (width, hidden), f"{mlp}up_proj.weight"),
        same(f"{block}ffn_down{suffix}.weight", (hidden, width), f"{mlp}down_proj.weight"),
    ]


def norms(block: str, layer: str, hidden: int) -> list[Part]:
    """Both norms of a layer."""
    return [
        same(f"{block}attn_norm.weight", (hidden,), f"{layer}input_layernorm.weight"),
        same(f"{block}ffn_norm.weight", (hidden,), f"{layer}post_attention_layernorm.weight"),
    ]
