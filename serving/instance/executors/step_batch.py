"""Lays out a step plan as the tensors of one forward pass.

All data is collected in Python lists first and converted to a few tensors at once: a step has many sequences and each
tensor costs microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from serving.ids import BlockId
from serving.model.batch import ForwardBatch, PromptChunk, RowGroup, future_mask
from serving.model.kv_cache import KvCache
from serving.values.step_plan import StepPlan

# Context columns below which float32 kernels sum in another order: padding keeps a row's bits.
_MIN_COLUMNS = 16

# Rows of the cache that individually attending tokens gather at once: bounds the memory for many such tokens, as in a
# sequence that is computed again.
_GATHERED_ROWS = 1 << 18

# Scores of one query block, over all heads: bounds the memory of a chunk with a long context.
_SCORE_ELEMENTS = 1 << 22
_QUERY_ROWS = 256


class Feed(NamedTuple):
    """Tokens of one sequence, fed at positions `start ...`; the block table covers them.

    `alone`: each attends individually, as in `SequenceStep`.
    """

    tokens: Sequence[int]
    start: int
    block_table: Sequence[BlockId]
    alone: bool = False


class _Row(NamedTuple):
    """One token that attends individually: the `offset`-th of a feed. Sorts by width, then in order."""

    width: int
    feed: int
    offset: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A forward batch, and the rows of each of the plan's sequences.

    Args:
        rows: per sequence in the plan's order, the row of each fed token, including draft tokens.
    """

    forward: ForwardBatch
    rows: tuple[Sequence[int], ...]


def step_feeds(plan: StepPlan) -> list[Feed]:
    """Tokens that a plan feeds, including draft tokens."""
    return [
        Feed([*s.tokens, *s.drafts] if s.drafts else s.tokens, s.start, s.block_table, s.alone) for s in plan.sequences
    ]


def build_batch(feeds: Sequence[Feed], cache: KvCache, heads: int) -> StepBatch:
    """Lay out one pass: single rows by context length, then chunks.

    Args:
        heads: attention heads, which bound the query block of a chunk.
    """
    if cache.split is None:
        return _laid_out(feeds, cache, heads)
    width = cache.split.split.width
    first, *others = [_laid_out([of_block(feed, i, width) for feed in feeds], cache, heads) for i in range(width)]
    return StepBatch(replace(first.forward, others=tuple(other.forward for other in others)), first.rows)


def of_block(feed: Feed, index: int, width: int) -> Feed:
    """A feed whose table has one of the `width` blocks of each row; block 0, never attended to, replaces freed ones."""
    return feed._replace(block_table=[BlockId(max(block, 0)) for block in feed.block_table[index::width]])


def _laid_out(feeds: Sequence[Feed], cache: KvCache, heads: int) -> StepBatch:
    single = _single_rows(feeds, cache.block_tokens)
    chunks = [i for i, feed in enumerate(feeds) if not feed.alone]
    rows: list[list[int] | range] = [[] for _ in feeds]
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    size, stride = cache.block_tokens, cache.block_tokens * cache.num_layers
    for row, (_, i, offset) in enumerate(single):
        feed, own = feeds[i], rows[i]
        assert isinstance(own, list), "rows of chunks are ranges, and come later"
        own.append(row)
        position = feed.start + offset
        tokens.append(feed.tokens[offset])
        positions.append(position)
        slots.append(feed.block_table[position // size] * stride + position % size)
    built = []
    for i in chunks:
        feed = feeds[i]
        first, span = len(tokens), range(feed.start, feed.start + len(feed.tokens))
        rows[i] = range(first, first + len(span))
        tokens.extend(feed.tokens)
        positions.extend(span)
        slots.extend([feed.block_table[p // size] * stride + p % size for p in span])
        built.append(_chunk(feed, first, cache, heads))
    numbers = torch.tensor((tokens, positions, slots), device=cache.device)
    forward = ForwardBatch(numbers[0], numbers[1], numbers[2], _row_groups(feeds, single, cache), tuple(built))
    return StepBatch(forward, tuple(rows))


def _single_rows(feeds: Sequence[Feed], block_tokens: int) -> list[_Row]:
    """Rows that attend individually, by width."""
    rows = [
        _Row(_padded_blocks(feed.start + offset + 1, block_tokens), index, offset)
        for index, feed in enumerate(feeds)
        if feed.alone
        for offset in range(len(feed.tokens))
    ]
    rows.sort()
    return rows


def _padded_blocks(context: int, block_tokens: int) -> int:
    """Block-table width to which a row is padded: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..., and `_MIN_COLUMNS` tokens.

    It depends on the row's context alone, not on the other rows, because kernels may sum longer rows in another order:
    so a token's bits depend neither on the batch nor on draft tokens fed after it. Few widths make few groups, with at
    most a third of waste.
    """
    needed = max(-(-context // block_tokens), -(-_MIN_COLUMNS // block_tokens))
    octave = 1 << (needed - 1).bit_length()
    return octave * 3 // 4 if needed <= octave * 3 // 4 else octave


def _row_groups(feeds: Sequence[Feed], rows: Sequence[_Row], cache: KvCache) -> tuple[RowGroup, ...]:
    """Groups of equal width; `rows` are sorted by it."""
    groups = []
    first = 0
    for width, members in groupby(rows, lambda row: row.width):
        alike, most = list(members), max(1, _GATHERED_ROWS // (width * cache.block_tokens))
        for begin in range(0, len(alike), most):
            groups.append(_row_group(feeds, alike[begin : begin + most], width, first, cache))
            first = groups[-1].last
    return tuple(groups)


def _row_group(feeds: Sequence[Feed], rows: Sequence[_Row], width: int, first: int, cache: KvCache) -> RowGroup:
    """Row group in which each row attends to the context up to itself."""
    tables: list[list[int]] = []
    seen: list[int] = []
    for row in rows:
        feed = feeds[row.feed]
        context = feed.start + row.offset + 1
        needed = -(-context // cache.block_tokens)
        tables.append([*feed.block_table[:needed], *[0] * (width - needed)])
        seen.append(context)
    runs = torch.tensor(tables, device=cache.device).flatten().mul_(cache.num_layers)
    columns = torch.arange(width * cache.block_tokens, device=cache.device)
    hidden = columns >= torch.tensor(seen, device=cache.device)[:, None]
    mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device).masked_fill_(hidden, float("-inf"))
    return RowGroup(first, first + len(seen), runs, mask[:, None])


def _chunk(feed: Feed, first: int, cache: KvCache, heads: int) -> PromptChunk:
    tokens = len(feed.tokens)
    rows = max(16, min(_QUERY_ROWS, tokens, _SCORE_ELEMENTS // (heads * (feed.start + tokens))))
    runs: Tensor = torch.tensor(feed.block_table[: -(-feed.start // cache.block_tokens)], dtype=torch.int64)
    return PromptChunk(
        first=first,
        last=first + tokens,
        start=feed.start,
        runs=runs.mul_(cache.num_layers).to(cache.device),
        hidden=future_mask(rows, cache.dtype, cache.device),
    )
