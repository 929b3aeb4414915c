"""Hidden states of token sequences, by the same batches, cache and attention that serving uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from serving.errors import EngineError
from serving.ids import BlockId
from serving.instance.executors.step_batch import Feed, build_batch
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.model import Model

BLOCK_TOKENS = 16
_LOGIT_ELEMENTS = 1 << 24
_ABSORBED_TOKENS = 4  # so few are not worth expanding a long beginning


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences with a common prefix, which is fed once.

    Args:
        shared: the prefix, in whole blocks; may be empty.
        rests: remainder of each sequence, at least one token.
    """

    shared: tuple[int, ...]
    rests: tuple[tuple[int, ...], ...]

    @property
    def blocks(self) -> int:
        """KV blocks that the group takes."""
        return sum(blocks_of(tokens) for tokens in (self.shared, *self.rests))


def blocks_of(tokens: Sequence[int]) -> int:
    """KV blocks of this many tokens."""
    return -(-len(tokens) // BLOCK_TOKENS)


class Scorer:
    """One model, with a KV cache for a few sequences at once.

    Args:
        context: longest sequence [tokens]. batch: sequences of that length that fit at once.
        chunk: tokens of a sequence fed per pass; 0 = all. Up to 4, tokens use the decode path.
    Raises: EngineError if there is no memory for the cache.
    """

    def __init__(self, model: Model, *, context: int, batch: int, kv_dtype: KvDtype = "auto", chunk: int = 0) -> None:
        self.model = model
        self.batch = batch
        self.blocks = batch * -(-context // BLOCK_TOKENS)
        self._chunk = chunk or context
        try:
            self._cache = KvCache(model.config, self.blocks, BLOCK_TOKENS, model.dtype, model.device, kv_dtype=kv_dtype)
        except RuntimeError as error:
            raise EngineError(f"no memory for {batch} sequences of {context} tokens: lower --batch") from error

    @property
    def rows_at_once(self) -> int:
        """Rows whose logits may be held at the same time: bounds a `[rows, vocab]` float32 tensor."""
        return max(1, _LOGIT_ELEMENTS // self.model.config.vocab_size)

    def hidden(self, groups: Sequence[PrefixGroup]) -> list[list[Tensor]]:
        """Feed groups, all of them together.

        Args:
            groups: that take at most `blocks` KV blocks.
        Returns: per group and rest `[tokens of the rest, hidden]`, what `Model.logits` takes.
        Raises: EngineError if a pass fails (out of memory, a device error).
        Effects: overwrites the cache.
        """
        assert sum(group.blocks for group in groups) <= self.blocks, "more sequences than the cache has room for"
        free = map(BlockId, range(self.blocks))
        begun, rests = [], []
        for group in groups:
            table = tuple(next(free) for _ in range(blocks_of(group.shared)))
            begun.append(Feed(group.shared, 0, table))
            for rest in group.rests:
                own = tuple(next(free) for _ in range(blocks_of(rest)))
                rests.append(Feed(rest, len(group.shared), table + own))
        self._feed([feed for feed in begun if feed.tokens])
        found = iter(self._feed(rests))
        return [[next(found) for _ in group.rests] for group in groups]

    def _feed(self, feeds: Sequence[Feed]) -> list[Tensor]:
        """Feed sequences in chunks: `[tokens, hidden]` of each."""
        parts: list[list[Tensor]] = [[] for _ in feeds]
        longest = max((len(feed.tokens) for feed in feeds), default=0)
        for first in range(0, longest, self._chunk):
            fed = [i for i, feed in enumerate(feeds) if first < len(feed.tokens)]
            for i, rows in zip(fed, self._pass([self._piece(feeds[i], first) for i in fed]), strict=True):
                parts[i].append(rows)
        return [torch.cat(rows) for rows in parts]

    def _piece(self, feed: Feed, first: int) -> Feed:
        tokens = feed.tokens[first : first + self._chunk]
        return Feed(tokens, feed.start + first, feed.block_table, len(tokens) <= _ABSORBED_TOKENS)

    def _pass(self, feeds: Sequence[Feed]) -> list[Tensor]:
        try:
            with torch.inference_mode():
                batch = build_batch(feeds, self._cache, self.model.config.attention.heads)
                hidden = self.model.forward(batch.forward, self._cache)
        except RuntimeError as error:
            raise EngineError(f"a pass over {len(feeds)} sequences failed: {error}; lower --batch") from error
        return [hidden[list(rows)] for rows in batch.rows]


def sequences(tokens: Sequence[tuple[int, ...]]) -> list[PrefixGroup]:
    """Groups of one sequence each, without a common prefix."""
    return [PrefixGroup((), (one,)) for one in tokens]


def flat(found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Rows of `hidden`, without their groups."""
    return list(chain.from_iterable(found))
