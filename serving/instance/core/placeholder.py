"""Placeholder tokens: input and output of a simulated instance.

A simulation needs lengths, identities and timing, but no text. A prompt is only a length, and a completion consists of
ids derived from the request's seed and the position, so that every instance, live or in virtual time, returns the same
ones.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import overload

_MASK = (1 << 64) - 1


class PlaceholderPrompt(Sequence[int]):
    """A prompt of unknown tokens, each of which reads as 0. Takes no memory, and slicing takes constant time."""

    __slots__ = ("_length",)

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> "PlaceholderPrompt": ...

    def __getitem__(self, index: int | slice) -> "int | PlaceholderPrompt":
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            return PlaceholderPrompt(max(0, stop - start) if step == 1 else len(range(start, stop, step)))
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return 0


_ZEROS = memoryview(bytes(1 << 20))


def placeholder_prompt(length: int) -> Sequence[int]:
    """A `PlaceholderPrompt`, or a faster equivalent if it is not longer than any model's context."""
    return _ZEROS[:length] if length <= len(_ZEROS) else PlaceholderPrompt(length)


def mix64(value: int) -> int:
    """64 well-mixed bits of a 64-bit number.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    """
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def placeholder_token(seed: int, position: int, vocabulary: int) -> int:
    """The token at a position of a completion.

    Args:
        seed: the request's, 64 bits.
        position: in the completion, from 0.
        vocabulary: exclusive upper limit of ids.
    """
    return mix64(seed ^ mix64(position)) % vocabulary


def rate_of(seed: int, limit: int, drafts: int, rate: float | tuple[float, ...]) -> float:
    """Extra tokens per decode step that verification accepts for one request, on average over its response.

    Drafts are accepted in order: the second only after the first. The mean of a finite response varies like that of as
    many independent draws as it has steps (normal approximation, clipped to the possible range).

    Args:
        seed: the request's.
        limit: tokens of its response.
        drafts: tokens drafted per step.
        rate: probability that one draft token is accepted; or by position, given that those before it were.
    Returns: between 0 and `drafts`.
    """
    if not drafts or (not isinstance(rate, tuple) and rate <= 0.0):
        return 0.0
    mean, square = _accepted(drafts, rate)
    steps = max(1.0, limit / (1.0 + mean))
    spread = math.sqrt(max(0.0, square - mean * mean) / steps)
    # The sum of twelve uniform numbers is close enough to normal, and the same on every machine.
    bits = mix64(seed ^ 0x6D7470)
    more = mix64(bits)
    uniform = 0
    for part in (bits, more, mix64(more)):
        uniform += (part & 0xFFFF) + (part >> 16 & 0xFFFF) + (part >> 32 & 0xFFFF) + (part >> 48)
    return min(float(drafts), max(0.0, mean + spread * (uniform / 65_536 - 6.0)))


@lru_cache(maxsize=64)
def _accepted(drafts: int, rate: float | tuple[float, ...]) -> tuple[float, float]:
    """Mean and mean square of the drafts that one step accepts."""
    if isinstance(rate, tuple):
        held = list(accumulate(rate[:drafts], mul))
        return sum(held), sum((2 * n - 1) * share for n, share in enumerate(held, 1))
    mean = sum(rate**n for n in range(1, drafts + 1))
    return mean, sum((2 * n - 1) * rate**n for n in range(1, drafts + 1))


def tokens_after(steps: int, extra: float) -> int:
    """Tokens that `steps` decode steps give, at `extra` accepted drafts per step, spread evenly."""
    return steps + int(extra * steps)


def steps_for(tokens: int, extra: float) -> int:
    """The smallest number of decode steps that give at least `tokens` tokens."""
    steps = int(tokens / (1.0 + extra))  # the two loops are `tokens_after`, inlined
    while steps + int(extra * steps) < tokens:
        steps += 1
    while steps > 0 and steps - 1 + int(extra * (steps - 1)) >= tokens:
        steps -= 1
    return steps
