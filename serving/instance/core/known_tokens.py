"""The tokens of one sequence, prompt and output, without a copy of the prompt.

Prompts are long, never change and are in the command anyway; a virtual-time run has prompts that are only lengths. So a
sequence's tokens are a view: first the prompt, then the output, which grows.
"""

from collections.abc import Sequence
from typing import overload


class KnownTokens(Sequence[int]):
    """`prompt` followed by `output`, both by reference."""

    __slots__ = ("_prompt", "_prompt_len", "output")

    def __init__(self, prompt: Sequence[int], output: list[int]) -> None:
        """
        Args:
            prompt: never changes.
            output: its owner may append to it.
        """
        self._prompt = prompt
        self._prompt_len = len(prompt)
        self.output = output

    def __len__(self) -> int:
        return self._prompt_len + len(self.output)

    def span(self, start: int, stop: int) -> Sequence[int]:
        """Tokens at positions `start ... stop - 1`, all of which exist. Copies at most those tokens."""
        prompt_len = self._prompt_len
        if start >= prompt_len:
            return self.output[start - prompt_len : stop - prompt_len]
        if stop <= prompt_len:
            return self._prompt[start:stop]
        return [*self._prompt[start:], *self.output[: stop - prompt_len]]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        prompt_len = self._prompt_len
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1 or stop < start:
                return [*self._prompt, *self.output][index]
            return self.span(start, stop)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._prompt[index] if index < prompt_len else self.output[index - prompt_len]
