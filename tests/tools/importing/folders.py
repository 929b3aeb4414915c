"""Small random checkpoint folders of transformers' own making, with a tokenizer."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.model.random_tokenizer import SPECIAL_TOKENS, write_tokenizer

SHAPE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "bos_token_id": SPECIAL_TOKENS.index("<|bos|>"), "eos_token_id": SPECIAL_TOKENS.index("<|eos|>"),
}  # fmt: skip
KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def write_dense(folder: Path, kind: str, **overrides: object) -> PreTrainedModel:
    """Write a model; every bias and norm is random, too.

    Returns: the model, float32.
    """
    config_class, model_class = KINDS[kind]
    torch.manual_seed(0)
    model: PreTrainedModel = model_class(config_class(**{**SHAPE, **overrides})).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder, model.config.vocab_size, model.config.max_position_embeddings)
    return model


def logits(model: PreTrainedModel) -> torch.Tensor:
    """`[1, tokens, vocab]` of some fixed tokens."""
    tokens = torch.arange(3, 43)[None]
    with torch.inference_mode():
        found: torch.Tensor = model(tokens).logits
    return found
