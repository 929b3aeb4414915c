"""Formats of a model's weights and of its KV cache: bytes per value, and type of the products.

Weights come in two classes: routed and shared experts; and the rest, called attention for its largest part:
projections, dense layers, embedding and head. Absorbed matrices, gates and indexers are BF16 in every format.
Scales of weights are left out (less than 1 % for one a channel or block, up to 6 % for groups of 4 bits) but MXFP4's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hardware.errors import SpecError

Products = Literal["int8", "fp8", "bf16"]
KvFormat = Literal["bf16", "int8", "fp8"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One format of weights.

    Attributes:
        bits: of one weight as it is stored and read.
        products: type in which matrix products run.
    """

    name: str
    bits: float
    products: Products

    @property
    def bytes(self) -> float:
        """Bytes of one weight."""
        return self.bits / 8


W8A8 = WeightFormat("w8a8", 8, "int8")
FP8 = WeightFormat("fp8", 8, "fp8")
BF16 = WeightFormat("bf16", 16, "bf16")
W4A8 = WeightFormat("w4a8", 4, "int8")
W8A16 = WeightFormat("w8a16", 8, "bf16")
W4A16 = WeightFormat("w4a16", 4, "bf16")
MXFP4 = WeightFormat("mxfp4", 4.25, "bf16")
"""4 bits, and 8 of scale for each 32. Source: OCP Microscaling Formats 1.0; multiplied in BF16, as gpt-oss does."""
WEIGHT_FORMATS: Mapping[str, WeightFormat] = {one.name: one for one in (W8A8, FP8, BF16, W4A8, W8A16, W4A16, MXFP4)}
_ATTENTION_OF: Mapping[str, WeightFormat] = {"w4a8": W8A8, "w4a16": BF16, "mxfp4": BF16}
"""Formats that are of experts alone where a model has some, and what the rest then has.

Source: vllm-ascend's DeepSeek W4A8, Kimi-K2-Thinking and gpt-oss: attention has 8 bits, BF16 and BF16.
"""


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """Formats of one model as it is served."""

    attention: WeightFormat = W8A8
    experts: WeightFormat = W8A8
    kv: KvFormat = "bf16"

    @property
    def text(self) -> str:
        """For people."""
        weights = self.attention.name.upper()
        if self.attention != self.experts:
            weights = f"{weights}, of experts {self.experts.name.upper()}"
        return f"weights {weights}; KV {self.kv.upper()}"

    @property
    def one_byte_kv(self) -> bool:
        """Whether the cache has one byte a value: INT8 or FP8."""
        return self.kv != "bf16"

    def on_device_without_fp8(self) -> "ModelFormats":
        """Formats in which a device that multiplies no FP8 serves an FP8 checkpoint: W8A8, converted before.

        Source: CloudMatrix384 paper 4.5: the engine serves R1, whose checkpoint is FP8, in INT8.
        """
        attention, experts = (W8A8 if one == FP8 else one for one in (self.attention, self.experts))
        return ModelFormats(attention, experts, self.kv)


AS_PUBLISHED = ModelFormats()
"""Formats of the published rows on Ascends. Source: CloudMatrix384 paper 4.5."""


def formats_named(name: str, *, experts: bool, kv: KvFormat = "bf16") -> ModelFormats:
    """The formats given by a user as one name, or two: `attention+experts`.

    Args:
        experts: the model has some; else all of it is the rest.
    Raises: SpecError for a name that is not known, naming those that are.
    """
    first, plus, second = name.partition("+")
    found = [WEIGHT_FORMATS.get(one) for one in ((first, second) if plus else (first, first))]
    attention, of_experts = found
    if attention is None or of_experts is None:
        known = ", ".join(WEIGHT_FORMATS)
        raise SpecError(f"weights {name!r} are not known; there are {known}, or two of them: attention+experts")
    if not experts:
        if plus:
            raise SpecError(
                f"weights {name!r} have a separate format for experts, but the model has none: name one format"
            )
        return ModelFormats(attention, attention, kv)
    return ModelFormats(attention if plus else _ATTENTION_OF.get(first, attention), of_experts, kv)
