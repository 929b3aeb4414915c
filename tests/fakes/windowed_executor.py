"""A `FakeExecutor` whose layers have a window: blocks of each kind hold the required rows, and no others are read."""

from collections.abc import Sequence

from serving.errors import EngineError
from serving.ids import BlockId
from serving.values.layer_split import LayerSplit
from serving.values.step_plan import SequenceResult, SequenceStep
from tests.fakes.executor import FakeExecutor

_OUTSIDE = -2
"""Replaces a token that was computed on another instance."""


class WindowedExecutor(FakeExecutor):
    """Every block of a row holds the row's tokens. In the window, sliding blocks must equal full ones."""

    def __init__(self, num_blocks: int, block_tokens: int, split: LayerSplit) -> None:
        super().__init__(num_blocks, block_tokens)
        self.split = split
        self._known: list[int] = []
        """Tokens of the current sequence that no layer sees any more, independent of the blocks' contents."""
        self._fed: dict[str, dict[int, int]] = {}

    def _write(self, step: SequenceStep, written: dict[tuple[BlockId, int], str]) -> None:
        size, width = self.block_tokens, self.split.width
        if (step.start + len(step.tokens)) * width > len(step.block_table) * size or step.drafts:
            raise EngineError(f"{step.sequence_id}: {len(step.tokens)} tokens at {step.start} do not fit its blocks")
        if step.start + len(step.tokens) > self.max_len:
            raise EngineError(f"{step.sequence_id}: tokens at {step.start} pass the longest length")
        self._fed.setdefault(step.sequence_id, {}).update(enumerate(step.tokens, start=step.start))
        for position, token in enumerate(step.tokens, start=step.start):
            row, slot = divmod(position, size)
            for block in step.block_table[row * width : (row + 1) * width]:
                if block < 0:
                    raise EngineError(f"{step.sequence_id} writes to a block that is gone")
                if (block, slot) in written:
                    raise EngineError(f"{step.sequence_id} and {written[block, slot]} write to block {block}")
                written[block, slot] = step.sequence_id
                self.arena[block][slot] = token

    def _answer(self, step: SequenceStep) -> SequenceResult:
        order, end, fed = step.sample, step.start + len(step.tokens), self._fed[step.sequence_id]
        if order is not None:
            self._known = [*order.prompt, *order.output]
        else:
            self._known = [fed.get(position, _OUTSIDE) for position in range(end)]
        for length in range(step.start + 1, end + 1):  # each row has a window of its own
            self._check_windows(step.block_table, length)
        return super()._answer(step)

    def _seen(self, arena: list[list[int]], table: Sequence[BlockId], length: int) -> list[int]:
        if self.split.full:
            return super()._seen(arena, table[:: self.split.width], length)
        outside = max(0, length - self.split.window)
        return self._known[:outside] + [self._token(table, position, 0) for position in range(outside, length)]

    def _check_windows(self, table: Sequence[BlockId], length: int) -> None:
        for position in range(max(0, length - self.split.window), length):
            seen = {self._token(table, position, entry) for entry in range(self.split.full, self.split.width)}
            if self.split.full:
                seen.add(self._token(table, position, 0))
            if len(seen) != 1:
                raise EngineError(f"blocks of position {position} hold {seen}")

    def _token(self, table: Sequence[BlockId], position: int, entry: int) -> int:
        row, slot = divmod(position, self.block_tokens)
        block = table[row * self.split.width + entry]
        if block < 0:
            raise EngineError(f"position {position} is read, whose block {entry} is gone")
        return self.arena[block][slot]
