"""Rotary positions of a GGUF file as `rope_theta` and `rope_scaling` of a config.json."""

import math

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.tools.importing.gguf_file import GgufFile
from serving.tools.importing.keys import ArchitectureKeys

FACTORS = "rope_freqs.weight"
"""Tensor with a divisor for the frequency of each rotated pair, made by the converter of Llama 3's settings."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The settings of all published Llama 3.1, 3.2 and 3.3, but for the factor; GGUF keeps what follows from them only."""
_YARN = {
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "attention_factor": "yarn_attn_factor",
}
"""Names in `rope_scaling`, and in GGUF below `rope.scaling.`."""


def rope_settings(file: GgufFile, keys: ArchitectureKeys, width: int) -> dict[str, object]:
    """Rotary settings.

    Args:
        width: rotated elements of a head.
    Returns: `rope_theta` and, where positions are stretched, `rope_scaling`.
    Raises: ModelError for kinds that are not read.
    """
    theta = keys.number("rope.freq_base", 10000.0)
    kind = keys.text("rope.scaling.type", "none")
    keys.pass_over("rope.scaling.finetuned")
    scaling: dict[str, object] | None
    if kind == "none":
        scaling = _llama3(file, theta, width) if FACTORS in file.tensors else None
        keys.pass_over("rope.scaling.factor")
    elif kind == "linear":
        scaling = {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    elif kind == "yarn":
        scaling = _yarn(keys)
    else:
        raise ModelError(f"rope.scaling.type {kind[:40]!r} is not read; 'linear' and 'yarn' are")
    return {"rope_theta": theta, "rope_scaling": scaling}


def _yarn(keys: ArchitectureKeys) -> dict[str, object]:
    scaling: dict[str, object] = {
        "rope_type": "yarn",
        "factor": keys.number("rope.scaling.factor"),
        "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length"),
    }
    scaling |= {
        name: keys.number(f"rope.scaling.{own}") for name, own in _YARN.items() if keys.has(f"rope.scaling.{own}")
    }
    if keys.has("rope.scaling.yarn_log_multiplier"):
        # The converter writes a tenth of DeepSeek's mscale_all_dim, which its checkpoints also use as mscale.
        both = round(10 * keys.number("rope.scaling.yarn_log_multiplier"), 6)
        scaling |= {"mscale": both, "mscale_all_dim": both}
    return scaling


def _llama3(file: GgufFile, theta: float, width: int) -> dict[str, object]:
    tensor = file.tensors[FACTORS]
    if tensor.shape != (width // 2,):
        raise ModelError(f"{FACTORS} has the shape {list(tensor.shape)} instead of {[width // 2]}")
    divisors = tensor.read()
    factor = round(float(divisors.max()), 4)
    scaling = {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    if not torch.allclose(divisors, _llama3_divisors(theta, width, factor), rtol=1e-3):
        raise ModelError(
            f"{FACTORS} does not follow from Llama 3's settings of `rope_scaling`, and no others are supported"
        )
    return scaling


def _llama3_divisors(theta: float, width: int, factor: float) -> Tensor:
    """`[width / 2] float32`: divisor of each pair's frequency."""
    low, high = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    found = []
    for pair in range(width // 2):
        turns = _LLAMA3["original_max_position_embeddings"] / (2 * math.pi * theta ** (2 * pair / width))
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        found.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(found)
