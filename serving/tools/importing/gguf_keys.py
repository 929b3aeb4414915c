"""Keys of a GGUF file's architecture, read by type; an unread key is refused by its name."""

import math

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.config_keys import number, whole
from serving.tools.importing.gguf_file import GgufFile, Value


class ArchitectureKeys:
    """Keys `{architecture}.…` of a file; names below are without that prefix.

    Numbers have the bounds of those in a config.json. Reads are recorded for `refuse_unread`.
    """

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._prefix = architecture + "."
        names = (name for name in file.values if name.startswith(self._prefix))
        self._values = {name.removeprefix(self._prefix): file.values[name] for name in names}
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether there is such a key."""
        return name in self._values

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A count.

        Raises: ModelError if it is missing without a default, no whole number, or below `least`.
        """
        self._read.add(name)
        try:
            return whole(self._values, name, default, least=least)
        except (KeyError, TypeError, ModelError) as error:
            raise self._wrong(name, error) from error

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number.

        Raises: ModelError if it is missing without a default, or no number.
        """
        self._read.add(name)
        try:
            return number(self._values, name, default)
        except (KeyError, TypeError, ModelError) as error:
            raise self._wrong(name, error) from error

    def flag(self, name: str, default: bool) -> bool:
        """A switch.

        Raises: ModelError if it is none.
        """
        value = self._one(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, TypeError())
        return value

    def text(self, name: str, default: str) -> str:
        """A word.

        Raises: ModelError if it is none.
        """
        value = self._one(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, TypeError())
        return value

    def pass_over(self, *names: str) -> None:
        """Count keys as read: results do not depend on them."""
        self._read.update(names)

    def refuse_unread(self) -> None:
        """Raises: ModelError if there is a key that no other method has read: it may change results."""
        unread = sorted(self._values.keys() - self._read)
        if unread:
            listed = ", ".join(self._prefix + name for name in unread[:3])
            raise ModelError(f"{listed} {'is' if len(unread) == 1 else 'are'} not supported, and may change results")

    def _one(self, name: str, default: Value) -> Value:
        self._read.add(name)
        return self._values.get(name, default)

    def _wrong(self, name: str, error: Exception) -> ModelError:
        if isinstance(error, KeyError):
            return ModelError(f"it lacks the key {self._prefix}{name}")
        if isinstance(error, TypeError):
            return ModelError(
                f"{self._prefix}{name} is {repr(self._values[name])[:40]}, which is not of the type it needs"
            )
        return ModelError(f"{self._prefix}{error}")


# Rotary positions of a GGUF file as `rope_theta` and `rope_scaling` of a config.json.

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
