"""Products with a separate weight for each attention head: MLA's absorbed projections."""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

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
