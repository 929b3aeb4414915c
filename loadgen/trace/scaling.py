"""Lengths made longer or shorter: one rule for all tools.

A prefix id continues to denote the same block, and the block changes its size: whole blocks stay whole and partly
filled ones partly filled. Ids are not touched, so equal prefixes stay equal, unequal ones unequal, and the share of
blocks that repeat is exactly the trace's. The price: a block has whole tokens, so that a factor of 1.001 on blocks of
512 makes 513, which is 1.002.

    factor 0.25:   |   512   |   512   | 300 |   ->   | 128 | 128 | 75 |      the same three ids

Halves are rounded to the even neighbour, as NumPy does.
"""

import numpy as np

from loadgen.trace.draws import IntArray


def scaled_block(block_tokens: int, factor: float) -> int:
    """The size of a block after scaling [tokens]; 0 if that is less than half a token."""
    return int(block_tokens * factor + 0.5)


def scaled_lengths(tokens: IntArray | int, factor: float) -> IntArray:
    """Lengths times a factor, rounded; may be 0."""
    return np.asarray(np.rint(np.asarray(tokens) * factor), np.int64)


def scaled_prompts(tokens: IntArray | int, block_tokens: int, factor: float) -> IntArray:
    """Prompt lengths: block by block, the rest for itself. `block_tokens`: before scaling."""
    block = scaled_block(block_tokens, factor)
    whole, rest = np.divmod(np.asarray(tokens), block_tokens)
    partial = np.clip(scaled_lengths(rest, block / block_tokens), 1, max(1, block - 1))
    return np.asarray(whole * block + np.where(rest > 0, partial, 0), np.int64)
