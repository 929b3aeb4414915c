"""From a step plan to the tensors of one forward pass.

Everything is laid out in Python lists first and becomes a handful of tensors at once: a step has many sequences and
each tensor costs microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from serving.model.batch import Chunk, ForwardBatch, RowGroup, future_mask
from serving.model.kv_cache import KvCache
from serving.policy.step_plan import SequenceStep, StepPlan

# Chunks up to this many tokens attend row by row with absorbed weights, like decode tokens: a tail of a prompt or the
# drafted tokens of speculation do not pay for expanding a long context.
_MAX_ABSORBED_TOKENS = 4

# Context columns below which float32 kernels add up in another order: padding keeps a row's bits.
_MIN_COLUMNS = 16

# Scores of one query block, over all heads: bounds the memory of a chunk against a long context.
_SCORE_ELEMENTS = 1 << 22
_QUERY_ROWS = 256


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A forward batch, and where each of the plan's sequences ended up in it.

    Args:
        first_rows: per sequence in the plan's order, the row of its first fed token; the others follow.
    """

    forward: ForwardBatch
    first_rows: tuple[int, ...]


def build_step_batch(plan: StepPlan, cache: KvCache, heads: int) -> StepBatch:
    """Lay out one step: short sequences by context length, then chunks.

    Args:
        heads: attention heads, which bound the query block of a chunk.
    """
    order = sorted(range(len(plan.sequences)), key=lambda i: _sort_key(plan.sequences[i], cache.block_tokens))
    first_rows = [0] * len(order)
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for i in order:
        step = plan.sequences[i]
        first_rows[i] = len(tokens)
        tokens.extend(step.tokens)
        positions.extend(range(step.start, step.start + len(step.tokens)))
        slots.extend(_slots(step, cache))
    short = [plan.sequences[i] for i in order if len(plan.sequences[i].tokens) <= _MAX_ABSORBED_TOKENS]
    chunks = [plan.sequences[i] for i in order if len(plan.sequences[i].tokens) > _MAX_ABSORBED_TOKENS]
    numbers = torch.tensor((tokens, positions, slots), device=cache.device)
    row = sum(len(step.tokens) for step in short)
    built = []
    for step in chunks:
        built.append(_chunk(step, row, cache, heads))
        row += len(step.tokens)
    forward = ForwardBatch(numbers[0], numbers[1], numbers[2], _row_groups(short, cache), tuple(built))
    return StepBatch(forward, tuple(first_rows))


def _sort_key(step: SequenceStep, block_tokens: int) -> tuple[bool, int]:
    return len(step.tokens) > _MAX_ABSORBED_TOKENS, _padded_blocks(step, block_tokens)


def _blocks(step: SequenceStep, block_tokens: int) -> int:
    return -(-(step.start + len(step.tokens)) // block_tokens)


def _padded_blocks(step: SequenceStep, block_tokens: int) -> int:
    """Block-table width that a sequence is padded to: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..., and `_MIN_COLUMNS` tokens.

    It follows from the sequence alone, not from its neighbours, because kernels may add up longer rows in another
    order: so a token's bits do not depend on the batch. Few widths make few groups, at a third of waste at most.
    """
    needed = max(_blocks(step, block_tokens), -(-_MIN_COLUMNS // block_tokens))
    octave = 1 << (needed - 1).bit_length()
    return octave * 3 // 4 if needed <= octave * 3 // 4 else octave


def _slots(step: SequenceStep, cache: KvCache) -> list[int]:
    """Layer-0 cache row of each fed token."""
    size, stride = cache.block_tokens, cache.block_tokens * cache.num_layers
    table = step.block_table
    stop = step.start + len(step.tokens)
    return [table[p // size] * stride + p % size for p in range(step.start, stop)]


def _row_groups(steps: Sequence[SequenceStep], cache: KvCache) -> tuple[RowGroup, ...]:
    """Groups of equal width; `steps` are sorted by it."""
    groups = []
    first = 0
    for width, members in groupby(steps, lambda step: _padded_blocks(step, cache.block_tokens)):
        groups.append(_row_group(list(members), width, first, cache))
        first = groups[-1].last
    return tuple(groups)


def _row_group(steps: Sequence[SequenceStep], width: int, first: int, cache: KvCache) -> RowGroup:
    """One row per token; each sees the context up to itself."""
    tables: list[list[int]] = []
    seen: list[int] = []
    for step in steps:
        needed = _blocks(step, cache.block_tokens)
        table = [*step.block_table[:needed], *[0] * (width - needed)]
        for offset in range(len(step.tokens)):
            tables.append(table)
            seen.append(step.start + offset + 1)
    runs = torch.tensor(tables, device=cache.device).flatten().mul_(cache.num_layers)
    columns = torch.arange(width * cache.block_tokens, device=cache.device)
    hidden = columns >= torch.tensor(seen, device=cache.device)[:, None]
    mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device).masked_fill_(hidden, float("-inf"))
    return RowGroup(first, first + len(seen), runs, mask[:, None])


def _chunk(step: SequenceStep, first: int, cache: KvCache, heads: int) -> Chunk:
    tokens = len(step.tokens)
    rows = max(16, min(_QUERY_ROWS, tokens, _SCORE_ELEMENTS // (heads * (step.start + tokens))))
    runs: Tensor = torch.tensor(step.block_table[: -(-step.start // cache.block_tokens)], dtype=torch.int64)
    return Chunk(
        first=first,
        last=first + tokens,
        start=step.start,
        runs=runs.mul_(cache.num_layers).to(cache.device),
        hidden=future_mask(rows, cache.dtype, cache.device),
    )
