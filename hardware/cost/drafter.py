"""Separate draft models, as of EAGLE and EAGLE-3: a few layers of their own beside the target's.

Each draft token is one pass through the drafter's layers and its LM head, which often has a reduced vocabulary. The
input is the target's hidden states, fused with the embedding, which the drafter shares. The first pass reads all tokens
that the target verified. A cached token takes memory in the drafter's layers, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardware.cost.model_config import config_of, shape_from_config
from hardware.cost.model_shape import ModelShape
from hardware.errors import SpecError


@dataclass(frozen=True, slots=True)
class KnownDrafter:
    """A published draft model.

    Attributes:
        acceptance: by position, each given that the earlier ones were accepted.
        source: of the sizes; measured: of the acceptance.
    """

    config: Mapping[str, Any]
    acceptance: tuple[float, ...]
    source: str
    measured: str


_LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 64, "head_dim": 128,
          "draft_vocab_size": 32_000, "tie_word_embeddings": False}  # fmt: skip
KNOWN_DRAFTERS: Mapping[str, KnownDrafter] = {
    "kimi-k2-eagle3": KnownDrafter(
        _LLAMA | {"hidden_size": 7168, "intermediate_size": 18_432, "num_key_value_heads": 64, "vocab_size": 163_840},
        (0.72, 0.72, 0.72),
        "config.json of AQ-MedAI/Kimi-K2-Instruct-eagle3",
        "2.61 tokens a step on MT-Bench with 3 drafts, of Kimi-K2.6 (model card of kimi-k2.6-eagle3.1-mla); positions "
        "are not published and taken to be equal",
    ),
    "qwen3-235b-eagle3": KnownDrafter(
        _LLAMA | {"hidden_size": 4096, "intermediate_size": 24_576, "num_key_value_heads": 4, "vocab_size": 151_936},
        (0.70, 0.67, 0.67),
        "SpecForge, configs/qwen3-235B-A22B-eagle3.json",
        "0.7006 and 0.4694 by position, of Qwen3-8B with EAGLE-3 (vllm-ascend, pull request 15174); of Qwen3-235B no "
        "number is published",
    ),
}


def load_drafter(name_or_path: str) -> ModelShape:
    """Read the shape of a draft model.

    Args:
        name_or_path: of `KNOWN_DRAFTERS`, or a folder with a `config.json`, or that file.
    Raises: SpecError if it cannot be read, or is no dense model.
    Effects: reads one file, unless the name is known.
    """
    known = KNOWN_DRAFTERS.get(name_or_path)
    path = Path(name_or_path)
    if known is None and not path.exists():
        raise SpecError(
            f"no draft model {name_or_path!r}: name a folder with its config.json, or {', '.join(KNOWN_DRAFTERS)}"
        )
    config = config_of(path) if known is None else known.config
    nested = config.get("transformer_layer_config")
    if isinstance(nested, Mapping):  # as the speculators library stores it
        config = {**nested, **{key: value for key, value in config.items() if key == "draft_vocab_size"}}
    shape = shape_from_config(config, name_or_path if known else path.name)
    vocab = config.get("draft_vocab_size")
    if isinstance(vocab, int) and vocab > 0:
        shape = replace(shape, vocab=vocab)
    if shape.experts:
        raise SpecError(f"draft model {shape.name}: has experts; only dense draft models are priced")
    return shape


def with_drafter(shape: ModelShape, name_or_path: str) -> ModelShape:
    """The model with a separate draft model in place of its own MTP modules; empty name = as it is.

    Raises: SpecError as `load_drafter`.
    """
    return replace(shape, drafter=load_drafter(name_or_path), mtp_layers=0) if name_or_path else shape
