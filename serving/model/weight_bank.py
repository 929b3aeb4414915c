"""Source of a model's final tensors: built from a checkpoint, or read from an image.

An assembly requests every *final* tensor (fused, reordered, in the kernels' form) from its bank by a stable name,
together with a function to build it, which the bank may or may not call. Each name is requested once; parts that
several layers share are requested by the first layer.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from serving.model.forms import ProductForms
from serving.model.linear import HeadLinear, Linear, LinearWeight, quantise_rows

BuildTensor = Callable[[], Tensor]
BuildLinear = Callable[[], LinearWeight]


class WeightBank(Protocol):
    """A model's final tensors by name."""

    @property
    def coarse_drafts(self) -> bool:
        """Whether draft layers have INT8 products, see `CoarseBank`."""
        ...

    @property
    def w8a16_inputs(self) -> int:
        """Most inputs of a product that may be W8A16; 0 = all such products are built in floating point."""
        ...

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """The tensor; `build` makes it, dense."""
        ...

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The product; `build` makes its weight."""
        ...

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """Products with a separate weight per head; `build` makes the weights `[heads, in_features, out_features]`."""
        ...


class FreshBank:
    """Builds everything, in memory of this process.

    Args:
        forms: the forms of its products.
    """

    def __init__(self, forms: ProductForms) -> None:
        self._forms = forms

    @property
    def coarse_drafts(self) -> bool:
        """The forms' setting."""
        return self._forms.coarse_drafts

    @property
    def w8a16_inputs(self) -> int:
        """The forms' limit."""
        return self._forms.w8a16_inputs

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """Returns the result of `build`."""
        return build()

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """Returns the product of `build`'s weight, in its form."""
        return self._forms.linear(build())

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """Returns the products of `build`'s weights, in their form."""
        return self._forms.heads(build())


# Draft layers in INT8 for any checkpoint, because at small batches reading their weights dominates their cost.
#
# Plain rounding, one scale per output: rejecting one more draft token in a hundred costs less than reading twice the
# bytes. The output does not change, since the model verifies every draft token.

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
