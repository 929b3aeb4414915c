"""Input of one forward pass besides weights and cache, ready as tensors.

Tokens of all sequences lie in one list. Rows that attend with absorbed weights (those behind a prompt) come
first, in groups of similar context length; whole prompt chunks follow. Built once per step, shared by all layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Token rows `first ... last - 1` that attend in one batched product over equally padded block tables.

    Args:
        runs: `[rows * blocks] int64`, each row's blocks (block id times layers), padded with block 0.
        mask: `[rows, 1, blocks * block_tokens]`, model dtype: 0 where a row may look, -inf where not.
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
        hidden: `[query rows, query rows]`, model dtype: 0 on and below the diagonal, -inf above. Queries are taken this
            many at a time; among the keys up to their last, only as many of the newest can lie in a query's future.
    """

    first: int
    last: int
    start: int
    runs: Tensor
    hidden: Tensor


def future_mask(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The `hidden` of chunks with this many query rows per block."""
    return torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu_(1)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One forward pass.

    Args:
        tokens: `[tokens] int64`.
        positions: `[tokens] int64`.
        slots: `[tokens] int64`, cache row of each token in layer 0.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    groups: tuple[RowGroup, ...]
    chunks: tuple[PromptChunk, ...]
