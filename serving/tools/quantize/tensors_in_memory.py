"""A few tensors in memory, read like a checkpoint: one layer on its way from the original to the quantised model."""

from collections.abc import Callable, Mapping
from typing import cast

import torch
from torch import Tensor

from serving.model.checkpoint import Checkpoint, Int8Weight
from serving.model.linear import HeadLinear, Linear, LinearWeight, PlainHeads, PlainLinear
from serving.tools.quantize.rounding import CalibrationInt8
from serving.tools.quantize.structure import Product

Tensors = dict[str, Tensor | Int8Weight]
"""By checkpoint name; floating-point ones are float32."""
Inputs = dict[str, Tensor]
"""Rows that products were called with, by the products' recorded names."""


class TensorTable:
    """A `TensorSource` over tensors in memory."""

    def __init__(self, tensors: Mapping[str, Tensor | Int8Weight]) -> None:
        self._tensors = tensors

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A floating-point tensor."""
        return cast(Tensor, self._tensors[name]).to(device=device, dtype=dtype)

    def int8(self, name: str, device: torch.device) -> Int8Weight | None:
        """An INT8 matrix; None for a floating-point one."""
        found = self._tensors[name]
        return found if isinstance(found, Int8Weight) else None


def read_tensors(checkpoint: Checkpoint, names: frozenset[str]) -> dict[str, Tensor]:
    """Tensors of a checkpoint in float32, FP8 dequantised."""
    return {name: checkpoint.tensor(name, torch.float32, torch.device("cpu")) for name in sorted(names)}


class InputRecorder:
    """Input rows of products, by the products' names."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Tensor]] = {}

    def add(self, name: str, rows: Tensor) -> None:
        """Keep a call's input; not copied, as no caller writes to one."""
        self._rows.setdefault(name, []).append(rows)

    def inputs(self) -> dict[str, Tensor]:
        """All rows of each product that was called, in the order of the calls."""
        return {name: torch.cat(parts) for name, parts in self._rows.items()}


class CalibrationBank:
    """Builds plain float32 products, INT8 ones where a weight is INT8, and records their inputs."""

    coarse_drafts = False
    w8a16_inputs = 0

    def __init__(self, recorder: InputRecorder | None = None) -> None:
        self._recorder = recorder

    def tensor(self, name: str, build: Callable[[], Tensor]) -> Tensor:
        """Returns what `build` gives."""
        return build()

    def heads(self, name: str, build: Callable[[], LinearWeight]) -> HeadLinear:
        """Returns what `build` gives."""
        return PlainHeads(build().weight)

    def linear(self, name: str, build: Callable[[], LinearWeight]) -> Linear:
        """Returns what `build` gives, recorded if there is a recorder."""
        product = calibration_linear(build())
        return product if self._recorder is None else _Recorded(name, product, self._recorder)


def calibration_linear(given: LinearWeight) -> Linear:
    """A product in float32 arithmetic."""
    if given.scale is None:
        return PlainLinear(given.weight, given.bias)
    return CalibrationInt8(Int8Weight(given.weight, given.scale), given.bias)


class _Recorded:
    def __init__(self, name: str, product: Linear, recorder: InputRecorder) -> None:
        self.in_features, self.out_features = product.in_features, product.out_features
        self._name = name
        self._product = product
        self._recorder = recorder

    def __call__(self, x: Tensor) -> Tensor:
        self._recorder.add(self._name, x)
        return self._product(x)


def product_weight(tensors: Mapping[str, Tensor | Int8Weight], product: Product) -> Tensor:
    """A product's matrices in floating point, side by side."""
    parts = [tensors[name + ".weight"] for name in product.matrices]
    assert all(isinstance(part, Tensor) for part in parts), "a product is quantised once"
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


def rows_of(product: Product, inputs: Inputs, tensors: Mapping[str, Tensor | Int8Weight]) -> Tensor:
    """A product's calibration rows; none if it was never called."""
    found = inputs.get(product.recorded)
    return found if found is not None else torch.zeros(0, product_weight(tensors, product).shape[1])
