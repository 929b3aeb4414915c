"""Rotary positions as multiplication by complex numbers of (almost) unit length.

Inside the model rotated pairs are always adjacent, and a head's rotating elements are its last ones. For checkpoints
with another order (halves of the head are paired, or its first elements rotate) the rows of the projections are
reordered once at load (`rotated_last`), which changes no score, because queries and keys are reordered the same way.
"""

import torch
from torch import Tensor

from serving.model.architecture import Architecture


class Rope:
    """Turns positions into rotations; contains only the frequencies."""

    def __init__(self, config: Architecture, device: torch.device) -> None:
        frequencies = config.rope.inverse_frequencies(config.rope_dim)
        self._frequencies = torch.tensor(frequencies, dtype=torch.float32, device=device)
        self._amplitude = torch.tensor(config.rope.amplitude, dtype=torch.float32, device=device)

    def rotations(self, positions: Tensor) -> Tensor:
        """Complex factors of each position.

        Args:
            positions: `[tokens] int64`.
        Returns: `[tokens, rope_dim / 2] complex64`.
        """
        return torch.polar(self._amplitude, positions.to(torch.float32)[:, None] * self._frequencies)


def rotate(x: Tensor, rotations: Tensor) -> Tensor:
    """Rotate adjacent pairs of the last axis.

    Args:
        x: `[..., rope_dim]`, last axis dense.
        rotations: `[..., rope_dim / 2] complex64`, broadcast against x's pairs.
    Returns: float32, x's shape.
    """
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2)


def rotated_last(width: int, rope_dim: int, first: int, *, interleave: bool = False) -> Tensor:
    """Order of a head's elements in which rotating ones are last, with adjacent pairs.

    Args:
        width: of the head.
        first: index of its first rotating element in the checkpoint.
        interleave: whether pairs are also adjacent in the checkpoint; otherwise they are `rope_dim / 2` apart.
    Returns: `[width] int64`, for `index_select`.
    """
    rotating = torch.arange(first, first + rope_dim)
    if not interleave:
        rotating = rotating.view(2, -1).t().flatten()
    still = torch.cat((torch.arange(first), torch.arange(first + rope_dim, width)))
    return torch.cat((still, rotating))
