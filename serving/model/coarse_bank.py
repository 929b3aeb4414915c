"""Draft layers in INT8 for any checkpoint, because at small batches reading their weights dominates their cost.

Plain rounding, one scale per output: rejecting one more draft token in a hundred costs less than reading twice the
bytes. The output does not change, since the model verifies every draft token.
"""

import torch

from serving.model.heads import HeadLinear
from serving.model.int8_linear import quantise_rows
from serving.model.linear import Linear, LinearWeight
from serving.model.weight_bank import BuildLinear, BuildTensor, WeightBank

_GATE = "mlp.gate"
"""Routers stay in float32: a rounded one would send rows to other experts."""


class CoarseBank:
    """Provides another bank's tensors, with products in INT8.

    Args:
        bank: the other bank; it stores the INT8 form, so that an image holds the smaller one.
    """

    coarse_drafts = True

    def __init__(self, bank: WeightBank) -> None:
        self._bank = bank

    @property
    def w8a16_inputs(self) -> int:
        """The other bank's limit."""
        return self._bank.w8a16_inputs

    def tensor(self, name: str, build: BuildTensor) -> torch.Tensor:
        """Returns the other bank's tensor."""
        return self._bank.tensor(name, build)

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The product in INT8, except for routers."""
        return self._bank.linear(name, build if name.endswith(_GATE) else lambda: coarse(build()))

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """Returns the other bank's heads, unchanged because they are small and multiplied with many rows."""
        return self._bank.heads(name, build)


def coarse(given: LinearWeight) -> LinearWeight:
    """The same product in INT8, rounded to nearest; an INT8 product is returned unchanged."""
    if given.scale is not None:
        return given
    weight, scale = quantise_rows(given.weight)
    return LinearWeight(weight, given.bias, scale[:, 0].contiguous())
