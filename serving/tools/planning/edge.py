"""The highest rate at which a predicate holds: doubled or halved until it changes, then the interval is bisected."""

from collections.abc import Callable

HIGHEST = 1024.0


def highest_that_holds(
    holds: Callable[[float], bool], rate: float, step: float, fine: float, highest: float = HIGHEST
) -> float:
    """The highest rate that holds, near an initial estimate.

    Args:
        step: factor between rates until one holds and the next does not. fine: final ratio between them.
        highest: no higher rate is tried, and none below its inverse.
    Returns: 0 if none holds; a rate within a step of `highest` if no failure was seen.
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
