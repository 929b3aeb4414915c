"""INT8 rounding: weights with one scale per output channel, activations with one per token. Symmetric, +-127."""

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.model.checkpoint import Int8Weight

LEVELS = 127.0


def channel_range(weight: Tensor) -> Tensor:
    """Each row's largest magnitude, `[rows] float32`; 1 for a row of zeros, which any scale serves.

    Args:
        weight: `[rows, columns] float32`.
    """
    largest = weight.abs().amax(1)
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def round_weight(weight: Tensor, limit: Tensor) -> Int8Weight:
    """Round to the nearest of 255 levels between -limit and limit; values beyond the limit are clipped.

    Args:
        weight: `[rows, columns] float32`.
        limit: `[rows] float32`, positive.
    """
    scale = limit / LEVELS
    levels = (weight / scale.unsqueeze(1)).round_().clamp_(-LEVELS, LEVELS)
    return Int8Weight(levels.to(torch.int8), scale)


def dequantised(given: Int8Weight) -> Tensor:
    """`[rows, columns] float32`."""
    return given.weight.float() * given.scale.unsqueeze(1)


def rounded_tokens(x: Tensor) -> Tensor:
    """Activations as serving rounds them: each row to INT8 by its largest magnitude, as numbers again.

    Args:
        x: `[tokens, channels] float32`.
    """
    largest = x.abs().amax(-1, keepdim=True)
    safe = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (x * (LEVELS / safe)).round_() * (safe / LEVELS)


class CalibrationInt8:
    """An INT8 product in float32 arithmetic: the values of serving's, up to the rounding of their sums."""

    def __init__(self, given: Int8Weight, bias: Tensor | None) -> None:
        self.out_features, self.in_features = given.weight.shape
        self._weight = dequantised(given)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(rounded_tokens(x), self._weight, self._bias)
