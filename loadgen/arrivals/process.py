"""Interface of arrival processes, and the renewal process that all random ones are made from.

Random arrivals are drawn in *operational time*, in which one event comes per unit on average, and then carried to
seconds by the inverse of the cumulative rate: t = L^-1(s), L(t) = integral of the rate from 0 to t. With exponential
gaps that is exactly the Poisson process of that rate, however it changes; with gamma gaps it keeps their burstiness.
Gaps are never rescaled to make a given number of requests end at a given time: that would no longer be the process.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import UsageError

FloatArray = NDArray[np.float64]

BLOCK = 1024
"""Events drawn at a time. Part of what a seed means: another size would give other times."""


class Arrivals(Protocol):
    """A process in time. Implementations are frozen dataclasses without state."""

    def blocks(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Send times [s from the start of the run], ascending over all blocks; lazily; endless unless documented
        otherwise.

        Effects: advances `rng` by whole blocks.
        """
        ...


def events(burstiness: float, rng: np.random.Generator) -> Iterator[FloatArray]:
    """A renewal process of unit rate in operational time, endless.

    Args:
        burstiness: shape k of the gamma distribution of gaps with mean 1 (as `--burstiness` of `vllm bench serve`):
            their coefficient of variation is 1/sqrt(k). 1 = Poisson; below 1 = bursts; infinite = equal gaps.
    Returns: blocks of shape [BLOCK] float64. The first event comes after one gap, except with equal gaps, where it
        comes at 0: a constant load starts immediately.
    """
    if math.isinf(burstiness):
        yield from (np.arange(first, first + BLOCK, dtype=np.float64) for first in itertools.count(0, BLOCK))
    reached = 0.0
    while True:
        gaps = (
            rng.standard_exponential(BLOCK) if burstiness == 1 else rng.standard_gamma(burstiness, BLOCK) / burstiness
        )
        gaps[0] += reached
        times = np.cumsum(gaps)
        reached = float(times[-1])
        yield times


def each(arrivals: Arrivals, rng: np.random.Generator) -> Iterator[float]:
    """The times one by one, as Python floats."""
    for block in arrivals.blocks(rng):
        yield from block.tolist()


def checked_rate(rate_per_s: float, what: str) -> float:
    """A rate that can be drawn from.

    Raises: UsageError unless it is finite and above 0.
    """
    if not 0 < rate_per_s < math.inf:
        raise UsageError(f"{what} must be a number of requests per second above 0, not {rate_per_s}")
    return rate_per_s


def checked_burstiness(burstiness: float) -> float:
    """A shape that can be drawn from; infinite is allowed.

    Raises: UsageError unless it is above 0.
    """
    if not burstiness > 0:
        raise UsageError(f"burstiness must be above 0 (1 = Poisson, inf = equal gaps), not {burstiness}")
    return burstiness
