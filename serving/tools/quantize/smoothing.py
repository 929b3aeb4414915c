"""Adaptive scale search: how much of its channels' ranges a product's input hands over to its weight.

    s* = argmin_s || Q(W diag(s)) Q(diag(s)^-1 X) - W X ||

One token's scale serves all its channels, so a channel with outliers costs the others their resolution; a weight's
scale serves one output channel and has room to spare. With `s_j = max|X_j|^a / max|W_j|^(1 - a)` the *strength* `a`
determines which side carries the range: it is searched on a grid that contains "not at all", so the result is never
worse than none on the rows that it was searched with. `s` is folded into the preceding operator (`folding`) at no cost.

Not every scale can be folded without loss: the operator before is stored with a few bits. So the search receives a
function that maps a scale to a realisable one (`Realise`), and tries only those.

Source: the CloudMatrix384 paper, section 4.5, eq. 3; the form of `s` is SmoothQuant's (Xiao et al., 2023).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from serving.tools.quantize.rounding import channel_range, dequantised, round_weight, rounded_tokens

FIXED_STRENGTH = 0.5
"""Without the search: activations and weights share the range evenly, SmoothQuant's default."""
STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Searched, besides no fold at all."""
SEARCH_ROWS = 256
"""Token rows that a candidate is tried on, spread over the calibration rows."""

_MOST_OCTAVES = 8
"""A fold changes no channel by more than 2^8: far from the ends of any format's exponents."""


Realise = Callable[[Tensor], Tensor]
"""Maps a scale `[channels]` to the nearest one that folds without rounding an unquantised operator."""


@dataclass(frozen=True)
class Consumer:
    """A product behind a fold.

    Args:
        weight: `[out_features, columns] float32`.
        inputs: `[rows, columns] float32`, calibration.
        reads: `[columns] int64`, the channel that each column reads; None = each its own.
    """

    weight: Tensor
    inputs: Tensor
    reads: Tensor | None = None

    @cached_property
    def exact(self) -> Tensor:
        """The product before quantisation, `[rows, out_features]`."""
        return self.inputs @ self.weight.T

    def columns(self, scale: Tensor) -> Tensor:
        """Each column's scale, from its channel's."""
        return scale if self.reads is None else scale[self.reads]

    def channels(self, ranges: Tensor) -> Tensor:
        """The largest of the ranges of the columns that read each channel."""
        if self.reads is None:
            return ranges
        return ranges.new_zeros(int(self.reads.max()) + 1).scatter_reduce(0, self.reads, ranges, "amax")


def smoothing_scale(inputs_range: Tensor, weight_range: Tensor, strength: float) -> Tensor:
    """`inputs_range^strength / weight_range^(1 - strength)`, around 1 in the geometric mean.

    Channels without activity or without weights get 1.

    Args:
        inputs_range, weight_range: `[channels] float32`, largest magnitudes.
    """
    alive = (inputs_range > 0) & (weight_range > 0)
    octaves = strength * inputs_range.log2() - (1 - strength) * weight_range.log2()
    octaves = torch.where(alive, octaves, torch.zeros_like(octaves))
    middle = octaves[alive].mean() if bool(alive.any()) else octaves.new_zeros(())
    shifted = (octaves - middle).clamp_(-_MOST_OCTAVES, _MOST_OCTAVES)
    return torch.where(alive, torch.exp2(shifted), torch.ones_like(shifted))


def powers_of_two(scale: Tensor) -> Tensor:
    """The nearest ones: they fold into every floating-point format without rounding."""
    return torch.exp2(scale.log2().round_())


def search_scale(consumers: Sequence[Consumer], realise: Realise, *, search: bool = True) -> Tensor:
    """The fold's scales, `[channels] float32`.

    Args:
        consumers: all quantised products that read the folded input; at least one.
        search: False takes `FIXED_STRENGTH`.
    """
    inputs_range, weight_range = ranges(consumers)
    if not search:
        return realise(smoothing_scale(inputs_range, weight_range, FIXED_STRENGTH))
    tried = [Consumer(c.weight, spread(c.inputs, SEARCH_ROWS), c.reads) for c in consumers]
    best = torch.ones_like(inputs_range)
    least = fold_error(tried, best)
    for strength in STRENGTHS:
        scale = realise(smoothing_scale(inputs_range, weight_range, strength))
        error = fold_error(tried, scale)
        if error < least:
            best, least = scale, error
    return best


def ranges(consumers: Sequence[Consumer]) -> tuple[Tensor, Tensor]:
    """Largest magnitude per channel of all inputs and of all weights."""
    weights = torch.stack([c.channels(c.weight.abs().amax(0)) for c in consumers]).amax(0)
    inputs = [c.channels(c.inputs.abs().amax(0)) for c in consumers if c.inputs.shape[0]]
    return (torch.stack(inputs).amax(0) if inputs else torch.zeros_like(weights)), weights


def fold_error(consumers: Sequence[Consumer], scale: Tensor) -> float:
    """Squared output error of plainly rounded products behind a fold, added up."""
    total = 0.0
    for consumer in consumers:
        columns = consumer.columns(scale)
        folded = consumer.weight * columns
        rounded = dequantised(round_weight(folded, channel_range(folded)))
        total += float((rounded_tokens(consumer.inputs / columns) @ rounded.T - consumer.exact).square().sum())
    return total


def spread(rows: Tensor, count: int) -> Tensor:
    """At most `count` rows, evenly spread."""
    if rows.shape[0] <= count:
        return rows
    return rows[torch.arange(count) * rows.shape[0] // count]
