"""A trace made faster or slower, longer or shorter, or shared out to several supernodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from loadgen.trace.draws import scaled_block, scaled_lengths, scaled_prompts
from serving.errors import ConfigError
from serving.virtual.workload.columns import Columns, IntArray

# Scaling of a trace's rate and lengths.
#
# The rate compresses time, so that daily variation shrinks together with the gaps. Lengths: see `loadgen.trace.draws`.


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors, all above 0: `rate` on arrivals per second, `prompt` and `output` on lengths."""

    rate: float = 1.0
    prompt: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        for name, factor in (("rate", self.rate), ("prompt length", self.prompt), ("output length", self.output)):
            if not 0 < factor <= 1e6:
                raise ConfigError(f"the factor of {name} is {factor:g}; it must be above 0 (and at most 10^6)")

    def block_tokens(self, trace_block_tokens: int) -> int:
        """Length of one trace block after scaling [tokens].

        Raises: ConfigError if that is less than half a token.
        """
        scaled = scaled_block(trace_block_tokens, self.prompt)
        if not scaled:
            raise ConfigError(
                f"prompts times {self.prompt:g} leave nothing of the trace's blocks of {trace_block_tokens} tokens; "
                f"take at least {1 / trace_block_tokens:g}"
            )
        return scaled

    def apply(self, columns: Columns, trace_block_tokens: int | None) -> Columns:
        """Scaled requests.

        Args:
            trace_block_tokens: before scaling; None = the trace has no ids, and lengths are not aligned to blocks.
        """
        return replace(
            columns,
            arrival_s=columns.arrival_s / self.rate,
            prompt_tokens=self._prompts(columns.prompt_tokens, trace_block_tokens),
            output_tokens=_scaled(columns.output_tokens, self.output),
        )

    def _prompts(self, tokens: IntArray, trace_block_tokens: int | None) -> IntArray:
        if trace_block_tokens is None or self.prompt == 1.0:
            return _scaled(tokens, self.prompt)
        return scaled_prompts(tokens, trace_block_tokens, self.prompt)

    def said(self) -> list[str]:
        """Differences from the trace, for the name of the workload."""
        factors = (("rate", self.rate), ("prompts", self.prompt), ("answers", self.output))
        return [f"{name} × {factor:g}" for name, factor in factors if factor != 1]


def _scaled(tokens: IntArray, factor: float) -> IntArray:
    """Lengths times a factor, rounded, at least 1."""
    return tokens if factor == 1.0 else np.maximum(1, scaled_lengths(tokens, factor))


# Assignment of requests to supernodes.
#
# Each supernode has its own cache: round-robin would split conversations over several, and hashing the first block
# would send all requests with the same system prompt to one. Therefore a request follows the earlier one that shares at
# least half of its known blocks, unless that shard is too far ahead of the others; otherwise it is assigned to the
# shard with the fewest prompt tokens. The assignment depends only on the trace, so that all processes compute the same
# one.

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
