"""Input tensors of one forward pass, other than weights and cache.

Tokens of all sequences are in one list. Rows that attend with absorbed weights (those after a prompt) come first, in
groups of similar context length; whole prompt chunks follow. Built once per step, shared by all layers.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Token rows `first ... last - 1` that attend in one batched product over equally padded block tables.

    Args:
        runs: `[rows * blocks] int64`, each row's blocks (block id times layers), padded with block 0.
        mask: `[rows, 1, blocks * block_tokens]`, model dtype: 0 where a row may attend, -inf elsewhere.
    """

    first: int
    last: int
    runs: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Token rows `first ... last - 1`: consecutive tokens of one sequence that attend with plain heads.

    Args:
        start: tokens of the sequence in the cache before the chunk.
        runs: `[blocks] int64`, the blocks that hold tokens `0 ... start - 1`; empty when start is 0.
        hidden: `[query rows, query rows]`, model dtype: 0 on and below the diagonal, -inf above. Queries are processed
            this many at a time; among the keys up to their last, only as many of the latest can be in a query's future.
    """

    first: int
    last: int
    start: int
    runs: Tensor
    hidden: Tensor

    def query_blocks(self) -> list[tuple[int, int]]:
        """First row and count of each query block, counted from the chunk's first row."""
        most = self.hidden.shape[0]
        rows = self.last - self.first
        return [(first, min(most, rows - first)) for first in range(0, rows, most)]


def future_mask(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The `hidden` of chunks with this many query rows per block."""
    return torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu_(1)


Choices = list[list[Tensor | None]]
"""Tokens that an indexer chose for each row: first the groups (a list of one), then the chunks (one per query block).

Each is `[rows, chosen] int64`, ascending indices in the row's context; None = the context is read whole.
"""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass.

    Args:
        tokens: `[tokens] int64`.
        positions: `[tokens] int64`.
        slots: `[tokens] int64`, cache row of each token in layer 0.
        choices: the choice of the pass's latest indexer; each indexer overwrites it, and layers that share one read it.
        others: the same pass over the other blocks of each table row, if each block holds only some of the layers.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    groups: tuple[RowGroup, ...]
    chunks: tuple[PromptChunk, ...]
    choices: Choices = field(default_factory=list)
    others: "tuple[ForwardBatch, ...]" = ()

    @property
    def parts(self) -> tuple[RowGroup | PromptChunk, ...]:
        """Groups, then chunks: all rows in order."""
        return (*self.groups, *self.chunks)
