"""Cutting a document into windows so that each of its tokens is predicted exactly once.

        document   0 1 2 3 4 5 6 7 8 9          context 6, stride 3
        window 1   0 1 2 3 4 5                  predicts 1 ... 6
        window 2         3 4 5 6 7 8            predicts 7 8 9, with 3 ... 6 as context

A stride equal to the context costs least; a smaller one gives every token at least `context - stride` tokens to look
back at.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextWindow:
    """One teacher-forced pass.

    Args:
        tokens: fed, at most `context` of them.
        targets: expected successors of the last `len(targets)` fed tokens.
        begins: whether it is the first one of its document.
    """

    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    begins: bool = True

    @property
    def first_row(self) -> int:
        """The fed position that predicts the first target."""
        return len(self.tokens) - len(self.targets)


def cut_windows(tokens: Sequence[int], context: int, stride: int) -> list[TextWindow]:
    """All windows of a document; its first token is context only.

    Args:
        context: most tokens fed at once. stride: `1 ... context`, distance between the starts of two windows.
    Returns: none for a document of fewer than two tokens.
    """
    assert 1 <= stride <= context, "the stride must not exceed the context"
    windows: list[TextWindow] = []
    start, next_target = 0, 1
    while next_target < len(tokens):
        stop = min(start + context, len(tokens) - 1)
        windows.append(TextWindow(tuple(tokens[start:stop]), tuple(tokens[next_target : stop + 1]), not windows))
        next_target = stop + 1
        start += stride
    return windows
