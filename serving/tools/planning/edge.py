"""The highest rate at which a predicate holds: doubled or halved until it does not, then the gap is halved."""

from collections.abc import Callable

HIGHEST = 1024.0


def highest_that_holds(
    holds: Callable[[float], bool], rate: float, step: float, fine: float, highest: float = HIGHEST
) -> float:
    """The highest rate that holds, near a first guess.

    Args:
        step: factor between rates until one holds and the next does not. fine: they end closer than this.
        highest: no higher rate is tried, and none below its inverse.
    Returns: 0 if none holds; a rate within a step of `highest` if it was not seen to end.
    """
    low, high = (rate, rate * step) if holds(rate) else (0.0, rate)
    while low and high <= highest and holds(high):
        low, high = high, high * step
    if low and high > highest:
        return low
    while not low and high > 1 / highest:
        low, high = (high / step, high) if holds(high / step) else (0.0, high / step)
    while low and high / low > fine:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
