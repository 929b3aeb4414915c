"""Model of a GGUF file as its checkpoint describes it: config.json and parts, before any tensor is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.errors import ModelError
from serving.tools.importing.gguf_file import GgufFile
from serving.tools.importing.keys import ArchitectureKeys
from serving.tools.importing.parts import Part, same

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
