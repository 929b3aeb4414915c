"""Traces as Mooncake publishes them: JSON lines with times, lengths and the hashes of the prompt's blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2353, 2354]}

`timestamp` is in milliseconds; one hash id stands for each block of 512 tokens, the last of which may be partial; a
hash covers everything before it, so that equal ids at equal positions are equal prefixes.

Scaled to a smaller model, lengths shrink together with the block: with a scale of 1/32 a block has 16 tokens, which is
also the block of most servers' prefix caches. Whole blocks stay whole and partial ones partial, so that the share of
blocks that repeat is exactly that of the trace.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, Turn, if_changed
from loadgen.trace.file import LARGEST_ID
from loadgen.trace.lines import json_lines
from loadgen.workload.datasets.blocks import BlockPrompts
from loadgen.workload.datasets.fit import Fit
from loadgen.workload.ports import WordSource
from loadgen.workload.source import draw_seed

BLOCK_TOKENS = 512
"""Tokens of a block in the traces that Mooncake published."""


class MooncakeLine(msgspec.Struct):
    """One request of a trace; keys that are not listed are ignored."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


@dataclass(frozen=True)
class Mooncake:
    """Workload of a Mooncake trace. Finite; one turn each; `arrival_s` counts from the trace's own zero.

    Draws nothing from the random stream for blocks that have an id: their text is the same in every run and every
    round, as the ids say. A server that has seen the trace before therefore knows all of it; salt the words to prevent
    that.

    Attributes:
        words: where text comes from.
        fit: its scale is rounded so that a block has a whole number of tokens (see `block_tokens`).
        trace_block_tokens: tokens of a block in the trace.
    """

    path: Path
    words: WordSource
    fit: Fit = field(default_factory=Fit)
    trace_block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        """Raises: UsageError if a block would have less than one token."""
        if self.trace_block_tokens < 1 or self.block_tokens < 1:
            raise UsageError(
                f"--length-scale {self.fit.length_scale:g} leaves nothing of the trace's blocks of "
                f"{self.trace_block_tokens} tokens"
            )

    @property
    def block_tokens(self) -> int:
        """Tokens of a block after scaling."""
        return int(self.trace_block_tokens * self.fit.length_scale + 0.5)

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the file cannot be read; TraceFormatError naming the line that is no request.
        """
        prompts = BlockPrompts(self.words, self.block_tokens)
        for number, line in json_lines(self.path, MooncakeLine, "a request of a Mooncake trace"):
            self._check(number, line)
            self.fit.tally.taken += 1
            turn = self._turn(line, prompts, rng)
            yield Conversation(turns=[turn], arrival_s=line.timestamp / 1000)

    def _check(self, number: int, line: MooncakeLine) -> None:
        """Raises: TraceFormatError for values that cannot be, or ids that do not match the length."""
        if line.timestamp < 0 or line.input_length < 1 or line.output_length < 0:
            raise TraceFormatError(f"{self.path}:{number}: timestamp and lengths must not be negative, nor a prompt 0")
        if not all(0 <= hash_id <= LARGEST_ID for hash_id in line.hash_ids):
            raise TraceFormatError(f"{self.path}:{number}: hash_ids must lie between 0 and 2^63-1")
        whole, rest = divmod(line.input_length, self.trace_block_tokens)
        if line.hash_ids and len(line.hash_ids) not in (whole, whole + (rest > 0)):
            raise TraceFormatError(
                f"{self.path}:{number}: {len(line.hash_ids)} hash_ids do not match {line.input_length} tokens in "
                f"blocks of {self.trace_block_tokens}"
            )

    def _turn(self, line: MooncakeLine, prompts: BlockPrompts, rng: np.random.Generator) -> Turn:
        """One request, scaled, clipped and written."""
        block = prompts.block_tokens
        asked = self._scaled_input(line.input_length, block)
        scaled = max(asked, self.words.overhead_tokens + 1)
        input_tokens, output_tokens = self.fit.clipped(scaled, self.fit.scaled(line.output_length), block)
        ids = line.hash_ids
        if input_tokens < scaled:
            # An id may only be claimed for a block that is all there; what the trace had behind it is gone.
            ids = ids[: input_tokens // block]
            rest_seed = line.hash_ids[0] if line.hash_ids else draw_seed(rng)
        else:
            rest_seed = 0 if len(ids) * block >= input_tokens else draw_seed(rng)
        return Turn(
            prompt=prompts.prompt(ids, input_tokens, rest_seed),
            output_tokens=output_tokens,
            input_tokens=input_tokens if self.words.exact else None,
            asked_input_tokens=if_changed(asked, input_tokens),
            asked_output_tokens=if_changed(self.fit.asked(line.output_length), output_tokens),
            hash_ids=ids,
            block_tokens=block if ids else 0,
        )

    def _scaled_input(self, tokens: int, block: int) -> int:
        """Whole blocks stay whole; the rest stays less than a block and more than nothing."""
        whole, rest = divmod(tokens, self.trace_block_tokens)
        if not rest:
            return whole * block
        scaled = int(rest * block / self.trace_block_tokens + 0.5)
        return whole * block + max(1, min(scaled, block - 1))
