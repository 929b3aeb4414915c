"""Calibration text on its way through a model, one layer at a time.

Windows of equal length, each a sequence of its own that attends to itself alone; all in float32. Memory holds one layer
of the model, and one hidden state per token of the text.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.architecture import Architecture
from serving.model.batch import ForwardBatch, PromptChunk, future_mask
from serving.model.block import Block
from serving.model.kv_cache import KvCache
from serving.model.mtp import MtpLayer
from serving.model.rope import Rope

PASS_TOKENS = 4096
"""Tokens that go through a layer at once."""
_QUERY_ROWS = 256


@dataclass(frozen=True, slots=True)
class Windows:
    """Token windows.

    Args:
        ids: `[windows, length + 1] int64`: each window's tokens, and the one after its last.
    """

    ids: Tensor

    @property
    def length(self) -> int:
        """Tokens of a window that are fed."""
        return self.ids.shape[1] - 1

    @property
    def tokens(self) -> int:
        """Tokens fed in all."""
        return self.ids.shape[0] * self.length

    @property
    def fed(self) -> Tensor:
        """`[tokens] int64`."""
        return self.ids[:, :-1].reshape(-1)

    @property
    def next(self) -> Tensor:
        """`[tokens] int64`, the token after each that is fed."""
        return self.ids[:, 1:].reshape(-1)


class LayerRunner:
    """Runs layers over windows."""

    def __init__(self, config: Architecture, windows: Windows) -> None:
        self.windows = windows
        self._length = windows.length
        self._per_pass = max(1, PASS_TOKENS // self._length)
        self._rope = Rope(config, torch.device("cpu"))
        self._cache = KvCache(config, self._per_pass, self._length, torch.float32, num_layers=1)
        self._future = future_mask(min(_QUERY_ROWS, self._length), torch.float32, torch.device("cpu"))

    def block(self, block: Block, hidden: Tensor) -> Tensor:
        """`[tokens, hidden] -> [tokens, hidden]`."""
        block.attention.cache_layer = 0  # one layer at a time: all use the same rows
        passes = self._passes(self.windows.fed)
        return torch.cat([block(hidden[at], self._rope.rotations(b.positions), b, self._cache) for at, b in passes])

    def draft(self, draft: MtpLayer, hidden: Tensor) -> Tensor:
        """A draft layer's hidden states.

        Args:
            hidden: `[tokens, hidden]`, the model's last, before its norm.
        """
        draft.block.attention.cache_layer = 0
        passes = self._passes(self.windows.next)
        return torch.cat([draft.forward(hidden[at], b, self._cache, self._rope) for at, b in passes])

    def _passes(self, tokens: Tensor) -> Iterator[tuple[slice, ForwardBatch]]:
        for first in range(0, tokens.shape[0], self._per_pass * self._length):
            at = slice(first, first + self._per_pass * self._length)
            yield at, self._batch(tokens[at])

    def _batch(self, tokens: Tensor) -> ForwardBatch:
        length, rows = self._length, torch.arange(tokens.shape[0])
        nothing = torch.empty(0, dtype=torch.int64)
        chunks = tuple(
            PromptChunk(first, first + length, 0, nothing, self._future) for first in range(0, tokens.shape[0], length)
        )
        return ForwardBatch(tokens, rows % length, rows, (), chunks)
