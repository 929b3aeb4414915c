"""Rotary positions as multiplication by complex numbers of (almost) unit length.

Inside the model rotated pairs are always neighbours. Checkpoints that pair halves of the head (`rope_interleave`
false) get the rows of their projections permuted once at load (`pair_neighbours`), which changes no score: queries
and keys are permuted alike.
"""

import torch
from torch import Tensor

from serving.model.config import Architecture


class Rope:
    """Turns positions into rotations; holds only the frequencies."""

    def __init__(self, config: Architecture, device: torch.device) -> None:
        frequencies = config.rope.inverse_frequencies(config.qk_rope_head_dim)
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
    """Rotate neighbouring pairs of the last axis.

    Args:
        x: `[..., rope_dim]`, last axis dense.
        rotations: `[..., rope_dim / 2] complex64`, broadcast against x's pairs.
    Returns: float32, x's shape.
    """
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2)


def pair_neighbours(weight: Tensor, heads: int, rope_dim: int) -> Tensor:
    """Reorder output rows so that rotary pairs `(i, i + rope_dim / 2)` become neighbours.

    Args:
        weight: `[heads * head_dim, ...]` whose heads end in `rope_dim` rotary rows (bias vectors too).
    Returns: a copy of the same shape.
    """
    rows = weight.reshape(heads, -1, *weight.shape[1:]).clone()
    halves = rows[:, -rope_dim:].clone()
    rows[:, -rope_dim::2] = halves[:, : rope_dim // 2]
    rows[:, -rope_dim + 1 :: 2] = halves[:, rope_dim // 2 :]
    return rows.view(weight.shape)
