"""INT8 rounding: weights with one scale per output channel, activations with one per token. Symmetric, +-127."""

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.errors import ModelError
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


# Error compensation: columns are rounded one after the other, and those not yet rounded make up for the damage.
#
# With `H = X^T X` the output error of a changed weight is `trace(d H d^T)`. Once column i is rounded, the best change
# of the remaining columns follows from the inverse of H (GPTQ; Frantar et al., 2023). Columns of large activations go
# first, while many others are left to help. The scales are fixed before, so serving is unchanged.
#
# H is damped: calibration rows are few, and a direction that they never took must not be used for free. A row whose
# compensated rounding is worse than the plain one on its own objective keeps the plain one.

DAMPING = 0.01
"""Added to H's diagonal, as a share of its mean; GPTQ's own."""

_COLUMNS = 64
"""Columns whose effect on later ones is applied in one product."""


def compensated(weight: Tensor, limit: Tensor, inputs: Tensor, damping: float = DAMPING) -> Int8Weight:
    """Round with compensation.

    Args:
        weight: `[rows, columns] float32`.
        limit: `[rows] float32`, range of each output channel.
        inputs: `[tokens, columns] float32`, calibration; without any the rounding is plain.
    Raises: ModelError if inputs are no numbers, or too large.
    """
    plain = round_weight(weight, limit)
    if not inputs.shape[0]:
        return plain
    hessian = inputs.T @ inputs / inputs.shape[0]
    order = hessian.diagonal().argsort(descending=True, stable=True)
    factor = inverse_factor(hessian[order][:, order], damping)
    levels = torch.empty_like(plain.weight)
    levels[:, order] = _rounded_in_turn(weight[:, order], plain.scale, factor)
    better = Int8Weight(levels, plain.scale)
    worse = weighted_error(weight, better, hessian) >= weighted_error(weight, plain, hessian)
    return Int8Weight(torch.where(worse.unsqueeze(1), plain.weight, levels), plain.scale)


def compensated_best(weight: Tensor, whole: Tensor, clipped: Tensor, inputs: Tensor) -> Int8Weight:
    """Round with compensation in two ranges, and keep for each output channel the better one on the inputs.

    A range that is best for plain rounding need not be best here: what clipping takes from a large weight, others can
    be made to give, and what finer levels win, compensation wins too.

    Args:
        whole, clipped: `[rows] float32`; channels where both are the same are rounded once.
    """
    narrowed = (clipped != whole).nonzero().flatten()
    tried = torch.cat((weight, weight[narrowed]))
    found = compensated(tried, torch.cat((whole, clipped[narrowed])), inputs)
    if not narrowed.shape[0] or not inputs.shape[0]:
        return Int8Weight(found.weight[: weight.shape[0]], found.scale[: weight.shape[0]])
    error = weighted_error(tried, found, inputs.T @ inputs)
    better = error[weight.shape[0] :] < error[narrowed]
    best = torch.arange(weight.shape[0])
    best[narrowed[better]] = weight.shape[0] + better.nonzero().flatten()
    return Int8Weight(found.weight[best], found.scale[best])


def weighted_error(weight: Tensor, rounded: Int8Weight, hessian: Tensor) -> Tensor:
    """Mean squared output error of each output channel, `[rows] float32`."""
    lost = dequantised(rounded) - weight
    return ((lost @ hessian) * lost).sum(1)


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """Upper triangular U with `U^T U = (H + damping)^-1`, `[columns, columns] float32`.

    Damping grows tenfold until the factors exist.

    Raises: ModelError if H has values that are no numbers.
    """
    wide = hessian.double()
    if not bool(wide.isfinite().all()):
        raise ModelError("its input during calibration is not a number (NaN) or infinite")
    mean = float(wide.diagonal().mean())
    while True:
        damped = wide.clone()
        damped.diagonal().add_(damping * mean if mean > 0 else 1.0)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not int(failed):
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed):
                return factor.float()
        damping *= 10


def _rounded_in_turn(weight: Tensor, scale: Tensor, factor: Tensor) -> Tensor:
    """Levels `[rows, columns] int8`; columns in the order in which they are rounded.

    Works on the transpose, where a column is one run of memory.
    """
    left = weight.T.contiguous()
    levels = torch.empty(left.shape, dtype=torch.int8)
    for first in range(0, left.shape[0], _COLUMNS):
        last = min(first + _COLUMNS, left.shape[0])
        damage = torch.empty(last - first, left.shape[1])
        for column in range(first, last):
            rounded = (left[column] / scale).round_().clamp_(-LEVELS, LEVELS)
            levels[column] = rounded
            lost = (left[column] - rounded * scale).div_(factor[column, column])
            left[column + 1 : last].addr_(factor[column, column + 1 : last], lost, alpha=-1)
            damage[column - first] = lost
        left[last:].addmm_(factor[first:last, last:].T, damage, alpha=-1)
    return levels.T.contiguous()
