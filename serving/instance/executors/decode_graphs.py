"""Decode steps as recorded CUDA graphs: one call launches hundreds of small kernels.

A graph always reads and writes the same memory, so each has static buffers that a step fills before a replay, and a
fixed shape: rows and block-table width are rounded up. Padding rows repeat the first row, including its slot: they
compute and store the same values, and their output is ignored.

    rows of the step ──► static buffers ──► replay ──► hidden states of the first rows
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from serving.instance.executors.step_batch import Feed, of_block
from serving.model.batch import ForwardBatch, RowGroup
from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.kv_cache import KvCache
from serving.model.model import Model

MAX_ROWS = 128
"""Above this, a step is long enough to launch its kernels one by one."""
MAX_GRAPHS = 64
"""Graphs share one memory pool; steps of further shapes run without a graph."""


def records(model: Model, cache: KvCache) -> bool:
    """Whether a model's pass can be recorded: on CUDA, all layers of a token in one block, no host synchronization."""
    feeds = [block.feed for block in model.blocks]
    waits = any(isinstance(feed, ExpertLayer) and isinstance(feed.experts, LocalExperts) for feed in feeds)
    together = cache.split is None or cache.split.split.width == 1
    return model.device.type == "cuda" and together and not waits


class Recorder(Protocol):
    """Records a computation on static memory for cheap repetition."""

    def record(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """Returns: the result of `compute`, in memory that every replay overwrites, and the replay."""
        ...


class CudaRecorder:
    """Records CUDA graphs that share their memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        """See `Recorder.record`. Effects: runs `compute` three times; kernels choose their plans in the first two."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()
        return result, graph.replay


class _Shape:
    """Static buffers of one shape, and the recording on them."""

    def __init__(self, model: Model, cache: KvCache, rows: int, width: int, recorder: Recorder) -> None:
        self._cache = cache
        self._rows, self._width = rows, width
        pinned = cache.device.type == "cuda"
        # One copy transfers all inputs: per row its token, position, slot and context length, then its block table.
        self._given = torch.zeros((rows, 4 + width), dtype=torch.int64, pin_memory=pinned)
        self._here = torch.zeros_like(self._given, device=cache.device, pin_memory=False)
        self._columns = torch.arange(width * cache.block_tokens, device=cache.device)
        self._model = model
        self._recorder = recorder
        self._recorded: tuple[Tensor, Callable[[], object]] | None = None

    def run(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Hidden states `[rows, hidden]`, valid until the next run.

        Args:
            rows: per row token, position, slot, context length, block ids.
        """
        filled = [[*row, *[0] * (4 + self._width - len(row))] for row in rows]
        filled += [filled[0]] * (self._rows - len(rows))
        self._given.copy_(torch.tensor(filled))
        self._here.copy_(self._given, non_blocking=True)
        if self._recorded is None:  # not earlier, since recording also computes and stores the rows of a real step
            self._recorded = self._recorder.record(self._compute)
        hidden, replay = self._recorded
        replay()
        return hidden[: len(rows)]

    def _compute(self) -> Tensor:
        here, cache = self._here, self._cache
        hidden = self._columns >= here[:, 3:4]
        mask = torch.zeros(hidden.shape, dtype=cache.dtype, device=cache.device).masked_fill_(hidden, float("-inf"))
        runs = (here[:, 4:] * cache.num_layers).flatten()
        group = RowGroup(0, self._rows, runs, mask[:, None])
        return self._model.forward(ForwardBatch(here[:, 0], here[:, 1], here[:, 2], (group,), ()), cache)


class DecodeGraphs:
    """Runs the forward pass of steps in which every row attends individually.

    Args:
        recorder: `CudaRecorder()`; anything else is for tests.
    """

    def __init__(self, model: Model, cache: KvCache, recorder: Recorder) -> None:
        self._model = model
        self._cache = cache
        self._recorder = recorder
        self._shapes: dict[tuple[int, int], _Shape] = {}

    def forward(self, feeds: Sequence[Feed]) -> Tensor | None:
        """Hidden states of all fed tokens, sequence by sequence: `[tokens, hidden]`, valid until the next call.

        Returns: None for a step that is too large, or has one shape too many.
        Effects: writes the tokens' rows into the cache; records a graph at the first step of a shape.
        """
        if self._cache.split is not None:
            feeds = [of_block(feed, 0, 1) for feed in feeds]
        rows = [row for feed in feeds for row in self._rows(feed)]
        if len(rows) > MAX_ROWS:
            return None
        key = (rounded(len(rows)), rounded(max(len(row) for row in rows) - 4))
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MAX_GRAPHS:
                return None
            shape = self._shapes[key] = _Shape(self._model, self._cache, *key, self._recorder)
        return shape.run(rows)

    def _rows(self, feed: Feed) -> list[list[int]]:
        size, stride = self._cache.block_tokens, self._cache.block_tokens * self._cache.num_layers
        rows = []
        for position, token in enumerate(feed.tokens, start=feed.start):
            slot = feed.block_table[position // size] * stride + position % size
            rows.append([token, position, slot, position + 1, *feed.block_table[: position // size + 1]])
        return rows


def rounded(n: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: few shapes, and at most a third of waste."""
    octave = 1 << (n - 1).bit_length()
    return octave * 3 // 4 if n <= octave * 3 // 4 else octave
