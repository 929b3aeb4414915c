"""Products in INT8 by torch: static weights with a scale per output, activations quantised per row at run time.

The same formula as the native library's, to the bit: integer sums are exact in any order, and the operations around
them are a fixed sequence in float32. So this is the form for machines without the library, and its reference.
"""

from functools import cache

import torch
from torch import Tensor

_LEAST = 1e-30
"""Replaces a smaller absolute maximum, whose reciprocal would not be finite."""


class Int8Linear:
    """`y = float(q @ weight^T) * row scale * scale + bias`, with `q` the rows in INT8.

    Args:
        weight: `[out_features, in_features] int8`.
        scale: `[out_features] float32`.
        bias: `[out_features]`, floating point.
    """

    __slots__ = ("bias", "in_features", "out_features", "scale", "weight")

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.scale = scale
        self.bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        rows, row_scale = quantise_rows(x)
        y = multiply_int8(rows, self.weight).float() * row_scale * self.scale
        if self.bias is not None:
            y += self.bias
        return y.to(x.dtype)


def quantise_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in INT8, each with its scale `absmax / 127`.

    Args:
        x: `[rows, features]`, floating point.
    Returns: `[rows, features] int8` and `[rows, 1] float32`; a row of zeros has scale 0.
    """
    wide = x.float()
    largest = wide.abs().amax(1, keepdim=True)
    # A true division: `127 / tensor` would be rounded twice.
    factor = torch.div(largest.new_tensor(127.0), largest.clamp_min(_LEAST))
    return (wide * factor).round().clamp(-128, 127).to(torch.int8), largest / 127


def multiply_int8(x: Tensor, weight: Tensor) -> Tensor:
    """`x weight^T`, exact.

    Args:
        x: `[rows, features] int8`.
        weight: `[out_features, features] int8`.
    Returns: `[rows, out_features] int32`.
    """
    # On CUDA the integer product requires many rows and round sizes; float64 is exact up to 2^53 and always available.
    if x.device.type == "cpu" and x.shape[1] > 1 and _cpu_is_exact():
        return torch._int_mm(x, weight.t())
    return (x.double() @ weight.double().t()).int()


@cache
def _cpu_is_exact() -> bool:
    """Whether the CPU's int8 product is exact: without VNNI pairs are summed in 16 bits, which can overflow.

    Effects: computes one small product, once per process.
    """
    most = torch.full((16, 64), 127, dtype=torch.int8)
    return bool((torch._int_mm(most, most.t()) == 127 * 127 * 64).all())
