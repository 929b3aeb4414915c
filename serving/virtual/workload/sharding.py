"""Assignment of requests to supernodes.

Each supernode has its own cache: round-robin would split conversations over several, and hashing the first block would
send all requests with the same system prompt to one. Therefore a request follows the earlier one that shares at least
half of its known blocks, unless that shard is too far ahead of the others; otherwise it is assigned to the shard with
the fewest prompt tokens. The assignment depends only on the trace, so that all processes compute the same one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from serving.virtual.workload.columns import Columns

FOLLOWS_FROM = 0.5
"""Share of a prompt's blocks. A later turn of a conversation shares most of its blocks with the previous turn, while a
common system prompt is the smaller part of most prompts."""

MAY_LEAD_BY = 0.1
"""Excess over the mean prompt tokens from which no request follows to a shard, as share of the mean."""

_SLACK_REQUESTS = 4
"""Further allowed excess in mean prompts, so that the first few requests can follow, too."""

_REMEMBERED_IDS = 1 << 20
"""Ids in each of two generations: at most 300 MB, reached only by traces with more than a million distinct blocks."""


class Sharder:
    """Assigns requests to shards, in order of arrival."""

    def __init__(self, shards: int, *, remembered: int = _REMEMBERED_IDS) -> None:
        """`remembered`: ids whose shard is kept, in each of two generations."""
        self._tokens = [0] * shards
        self._total = 0
        self._count = 0
        self._remembered = remembered
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def assign(self, prompt_tokens: int, blocks: tuple[int, ...]) -> int:
        """Assign the next request to a shard, and remember the shard of its blocks."""
        shard = self._followed(blocks)
        if shard is None or self._leads_too_far(shard):
            shard = self._tokens.index(min(self._tokens))
        self._tokens[shard] += prompt_tokens
        self._total += prompt_tokens
        self._count += 1
        for block in blocks:
            self._young.setdefault(block, shard)
        if len(self._young) >= self._remembered:
            self._old, self._young = self._young, {}
        return shard

    def _followed(self, blocks: tuple[int, ...]) -> int | None:
        """The shard with the longest known prefix, if that is long enough."""
        young, old = self._young, self._old
        for place in range(len(blocks) - 1, max(0, int(len(blocks) * FOLLOWS_FROM)) - 1, -1):
            shard = young.get(blocks[place])
            if shard is None:
                shard = old.get(blocks[place])
            if shard is not None:
                return shard
        return None

    def _leads_too_far(self, shard: int) -> bool:
        """Whether the shard is so far ahead of the mean that no request may follow to it."""
        mean_prompt = self._total / self._count if self._count else 0.0
        mean = self._total / len(self._tokens)
        return self._tokens[shard] > mean * (1 + MAY_LEAD_BY) + _SLACK_REQUESTS * mean_prompt


def sharded(batches: Iterable[Columns], shards: int) -> Iterator[Columns]:
    """The same columns with `shard` filled in, unless there is only one shard."""
    if shards == 1:
        yield from batches
        return
    sharder = Sharder(shards)
    for columns in batches:
        owners = map(sharder.assign, columns.prompt_tokens.tolist(), columns.id_tuples())
        yield replace(columns, shard=np.fromiter(owners, np.int64, len(columns)))
