"""One matrix product with a fixed weight: the port for every projection of the model.

Implementations differ in how the weight is stored (plain, packed for the CPU's matrix kernels, INT8), never in the
result: `y = x W^T + b`. The rest of the model uses only `Linear`, so a stored form is replaced in one place.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """One product's weight as read from a checkpoint, before conversion to the kernels' form.

    Args:
        weight: `[out_features, in_features]`: floating point, or int8 with a `scale`.
        bias: `[out_features]`, floating point.
        scale: `[out_features] float32`: the value of an int8 weight is `weight * scale[:, None]`.
        weight_only: whether activations are not rounded to int8 (W8A16); otherwise they are (W8A8).
        many_rows: always multiplied with many rows, so that a form for fast reading does not pay.

    Weights of heads are `[heads, in_features, out_features]`. Their int8 form is W8A16, with a scale of
    `[heads, in_features, 1]` or `[heads, 1, out_features]`.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None
    weight_only: bool = False
    many_rows: bool = False


class Linear(Protocol):
    """`[rows, in_features] -> [rows, out_features]`, same dtype and device."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """The weight as stored in the checkpoint, `[out_features, in_features]`."""

    __slots__ = ("bias", "in_features", "out_features", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PrepackedLinear:
    """The weight reordered once into the blocked layout of oneDNN's kernels.

    About half the time of a plain product at decode sizes, because no reorder runs per call. A row's result has the
    same bits with any other rows in the call (measured, see tests/model/test_linear.py), unlike plain float32 products.
    """

    __slots__ = ("_lone_row_differs", "_memory", "_packed", "_product", "bias", "in_features", "out_features")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, memory: object = None) -> None:
        """
        Args:
            weight: `[out_features, in_features]`, plain (not kept) or packed by `pack` before (kept).
            memory: memory of a packed weight, kept alive by this object; None = the tensor keeps its memory.
        """
        self._memory = memory
        self.out_features, self.in_features = weight.shape
        self._packed = weight if is_packed(weight) else pack(weight)
        # A single long row is summed in another order than the same row among others.
        self._lone_row_differs = self.in_features > _ORDERED_ROW
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        if self._lone_row_differs and x.shape[0] == 1:
            return self(x.expand(2, -1).contiguous())[:1]
        y: Tensor = self._product(x, self._packed, self.bias, "none", _NO_SCALARS, "")
        return y


# oneDNN's kernels for AMX tiles sum a row in an order that depends on the number of rows in the call; those for vectors
# do not. oneDNN reads the setting once per process, at its first product. It makes prompts in torch slower on such
# processors; our own tile kernels give each row the same bits.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Rows per call for which the packed layout is chosen: a decode batch.
_PACK_ROWS = 16
_ORDERED_ROW = 1024
_NO_SCALARS: list[float] = []
_PACKED_DTYPES = (torch.bfloat16, torch.float32)


def packs(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the packed form is the fastest exact one. Without AVX-512 oneDNN does not pack bfloat16."""
    if device.type != "cpu" or dtype not in _PACKED_DTYPES or not torch._C._has_mkldnn:
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    """The weight `[out_features, in_features]` in a blocked layout, chosen by its shape, the CPU and the threads."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_ROWS)
    return packed


def is_packed(weight: Tensor) -> bool:
    """Whether a weight was packed by `pack`."""
    return weight.layout is torch._mkldnn  # type: ignore[attr-defined]


def make_linear(given: LinearWeight) -> Linear:
    """The fastest exact form for the weight's device and dtype.

    Args:
        given: on the device that will use it; its weight is not kept if it is packed here.
    """
    if given.scale is not None:
        return Int8Linear(given.weight, given.scale, given.bias)
    if packs(given.weight.device, given.weight.dtype):
        return PrepackedLinear(given.weight, given.bias)
    return PlainLinear(given.weight, given.bias)


def fuse(*parts: LinearWeight) -> LinearWeight:
    """One product in place of several with the same input; the outputs are concatenated.

    A missing bias counts as zeros if others exist. Either all parts have scales, or none.
    """
    bias = scale = None
    if any(part.bias is not None for part in parts):
        dtype = next(part.bias.dtype for part in parts if part.bias is not None)
        zeros = [part.weight.new_zeros(part.weight.shape[0], dtype=dtype) for part in parts]
        bias = _joined([zero if part.bias is None else part.bias for zero, part in zip(zeros, parts, strict=True)])
    scales = [part.scale for part in parts if part.scale is not None]
    if scales:
        assert len(scales) == len(parts), "quantised and plain weights cannot share one product"
        scale = _joined(scales)
    return LinearWeight(_joined([part.weight for part in parts]), bias, scale)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first axis; `torch.cat` on the meta device would import half of torch's compiler."""
    rows = [part.shape[0] for part in parts]
    whole = parts[0].new_empty((sum(rows), *parts[0].shape[1:]))
    for place, part in zip(whole.split_with_sizes(rows), parts, strict=True):
        place.copy_(part)
    return whole


# Products in INT8 by torch: static weights with a scale per output, activations quantised per row at run time.
#
# The same formula as the native library's, to the bit: integer sums are exact in any order, and the operations around
# them are a fixed sequence in float32. So this is the form for machines without the library, and its reference.

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


# Products with a separate weight for each attention head: MLA's absorbed projections.

_SAME_ORDER_ROWS = 4


class HeadLinear(Protocol):
    """`[rows, heads, in_features] -> [rows, heads, out_features]`, same dtype and device."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainHeads:
    """The weights as one dense tensor.

    Args:
        weight: `[heads, in_features, out_features]`.
    """

    __slots__ = ("weight",)

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """One batched product.

        Float32 kernels sum in another order below four rows; such calls are padded, so that a row's result does not
        depend on the number of other rows in its step.
        """
        rows = x.shape[0]
        if rows < _SAME_ORDER_ROWS and x.dtype == torch.float32:
            x = F.pad(x, (0, 0, 0, 0, 0, _SAME_ORDER_ROWS - rows))
        return torch.bmm(x.transpose(0, 1), self.weight).transpose(0, 1)[:rows]
