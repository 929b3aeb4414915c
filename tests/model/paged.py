"""Drives a model through paged step batches and returns logits, for comparison with a reference."""

from collections.abc import Sequence

import torch
from torch import Tensor

from serving.ids import BlockId, SequenceId
from serving.instance.executors.step_batch import build_batch, step_feeds
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.model import Model
from serving.values.step_plan import SequenceStep, StepPlan


class PagedRunner:
    """Feeds sequences in arbitrary pieces; each sequence owns scattered blocks of one cache."""

    def __init__(
        self,
        model: Model,
        *,
        num_blocks: int = 64,
        block_tokens: int = 4,
        seed: int = 0,
        kv_dtype: KvDtype = "auto",
    ) -> None:
        self.model = model
        self.cache = KvCache(model.config, num_blocks, block_tokens, model.dtype, kv_dtype=kv_dtype)
        self._free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed)).tolist()
        self._tables: dict[str, list[BlockId]] = {}
        self._fed: dict[str, int] = {}

    def step(self, pieces: Sequence[tuple[str, Sequence[int]]]) -> list[Tensor]:
        """One pass over (sequence, next tokens) pairs: logits `[tokens, vocab]` of each piece."""
        steps = tuple(self._step(name, tokens) for name, tokens in pieces)
        batch = build_batch(step_feeds(StepPlan(0, steps)), self.cache, self.model.config.attention.heads)
        with torch.inference_mode():
            logits = self.model.logits(self.model.forward(batch.forward, self.cache))
        for name, tokens in pieces:
            self._fed[name] += len(tokens)
        return [logits[list(rows)] for rows in batch.rows]

    def run(self, name: str, tokens: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """Feed one sequence alone in pieces of the given sizes: logits `[tokens, vocab]`."""
        parts = []
        first = 0
        for size in sizes:
            parts += self.step([(name, tokens[first : first + size])])
            first += size
        return torch.cat(parts)

    def _step(self, name: str, tokens: Sequence[int]) -> SequenceStep:
        table = self._tables.setdefault(name, [])
        start = self._fed.setdefault(name, 0)
        while len(table) * self.cache.block_tokens < start + len(tokens):
            table.append(BlockId(self._free.pop()))
        return SequenceStep(SequenceId(name), tokens, start, tuple(table), None, alone=len(tokens) <= 4)


def pieces_of(size: int, total: int) -> list[int]:
    """Piece sizes that cut `total` tokens into runs of `size`."""
    return [min(size, total - first) for first in range(0, total, size)]
