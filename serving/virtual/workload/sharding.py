"""Which of several supernodes takes a request.

Round-robin would tear conversations apart, and each supernode has its own cache; hashing the first block would send
all that begin with one system prompt to one place. So: a request follows the earlier one with which it shares at
least half of its known blocks, unless that shard is too far ahead of the others; else it goes to the shard that got
the fewest prompt tokens. What is shared is told by the ids alone, so each process decides for itself and all agree.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from serving.virtual.workload.columns import Columns

FOLLOWS_FROM = 0.5
"""Share of a prompt's blocks. A later turn of a conversation has most of its blocks from the turn in front of it, a
common system prompt is the smaller part of most prompts."""

MAY_LEAD_BY = 0.1
"""How far a shard may be ahead of the mean before nothing follows to it any more, as share of the mean."""

_SLACK_REQUESTS = 4
"""The same in prompts, so that the first few requests may follow, too."""

_REMEMBERED_IDS = 1 << 20
"""In each of two generations: 300 MB at most, only reached by traces with more than a million different blocks."""


class Sharder:
    """Assigns requests to shards, in order of arrival."""

    def __init__(self, shards: int, *, remembered: int = _REMEMBERED_IDS) -> None:
        """Nothing assigned yet. `remembered`: ids whose shard is kept, in each of two generations."""
        self._tokens = [0] * shards
        self._total = 0
        self._count = 0
        self._remembered = remembered
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def assign(self, prompt_tokens: int, blocks: tuple[int, ...]) -> int:
        """The shard of the next request. Effects: remembers where its blocks are."""
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
        """The shard that has the longest known prefix, if that is long enough."""
        young, old = self._young, self._old
        for place in range(len(blocks) - 1, max(0, int(len(blocks) * FOLLOWS_FROM)) - 1, -1):
            shard = young.get(blocks[place])
            if shard is None:
                shard = old.get(blocks[place])
            if shard is not None:
                return shard
        return None

    def _leads_too_far(self, shard: int) -> bool:
        """Whether the shard has had so much more than the others that nothing may follow to it."""
        mean_prompt = self._total / self._count if self._count else 0.0
        mean = self._total / len(self._tokens)
        return self._tokens[shard] > mean * (1 + MAY_LEAD_BY) + _SLACK_REQUESTS * mean_prompt


def sharded(batches: Iterable[Columns], shards: int) -> Iterator[Columns]:
    """The same columns, with their shards filled in."""
    if shards == 1:
        yield from batches
        return
    sharder = Sharder(shards)
    for columns in batches:
        owners = map(sharder.assign, columns.prompt_tokens.tolist(), columns.id_tuples())
        yield replace(columns, shard=np.fromiter(owners, np.int64, len(columns)))
