"""Interface of arrival processes, and the renewal process that all random ones are made from.

Random arrivals are drawn in *operational time*, in which one event comes per unit on average, and then carried to
seconds by the inverse of the cumulative rate: t = L^-1(s), L(t) = integral of the rate from 0 to t. With exponential
gaps that is exactly the Poisson process of that rate, however it changes; with gamma gaps it keeps their burstiness.
Gaps are never rescaled to make a given number of requests end at a given time: that would no longer be the process.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
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
        """Send times [s from the start of the run], ascending, produced lazily; endless unless documented otherwise.

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


# Independent random streams from one seed, named by what they are for.
#
# Arrival times, contents and behaviours each have their own stream, so changing one (such as the share of clients that
# disconnect) leaves the others unchanged. Names are hashed with BLAKE2, never with Python's `hash()`, which differs
# from process to process.


def stream(seed: int, *path: str | int) -> np.random.Generator:
    """The generator for one purpose of a run.

    Args:
        seed: of the run, >= 0. path: names of the purpose, for instance ("times",) or ("client", 3).
    Returns: equal for equal arguments, in every process; statistically independent of every other path's.
    """
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=tuple(_key(part) for part in path)))


def _key(part: str | int) -> int:
    """64 bits that name one part; a number and its text are different names."""
    text = f"{type(part).__name__}:{part}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


# Arrivals at one rate: constant, Poisson, gamma; and all at once.


@dataclass(frozen=True)
class Steady:
    """Requests at a rate that does not change.

    Attributes:
        rate_per_s: mean rate; infinite = every request at time 0, as `--request-rate inf` means.
        burstiness: 1 = Poisson; below 1 = bursts; infinite = constant, the first at 0 (see `process.events`).
    """

    rate_per_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        """Raises: UsageError for a rate or burstiness that is not above 0."""
        checked_burstiness(self.burstiness)
        if self.rate_per_s != math.inf:
            checked_rate(self.rate_per_s, "the rate")

    def blocks(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Endless; see `Arrivals`."""
        while math.isinf(self.rate_per_s):
            yield np.zeros(BLOCK)
        for block in events(self.burstiness, rng):
            yield block / self.rate_per_s


# Arrivals as they were recorded, at their own pace or another, whole or cut out.


@dataclass(frozen=True)
class ReplayedArrivals:
    """How recorded times become send times: t -> (t - from_s) / rate_scale for t in [from_s, to_s).

    With the defaults a recorded time is its own send time, bit for bit.

    Attributes:
        rate_scale: 2 = twice as fast as recorded.
        from_s, to_s: part of the recording that is replayed [s from its start].
    """

    rate_scale: float = 1.0
    from_s: float = 0.0
    to_s: float = math.inf

    def __post_init__(self) -> None:
        """Raises: UsageError for a scale that is not above 0, or an empty or negative window."""
        if not 0 < self.rate_scale < math.inf:
            raise UsageError(f"the rate scale of a replay must be above 0, not {self.rate_scale}")
        if not 0 <= self.from_s < self.to_s:
            raise UsageError(f"a replay from {self.from_s} s to {self.to_s} s of the recording contains no requests")

    def due_s(self, recorded_s: float) -> float | None:
        """Send time of a recorded time; None outside the window."""
        if not self.from_s <= recorded_s < self.to_s:
            return None
        return (recorded_s - self.from_s) / self.rate_scale

    def is_over(self, recorded_s: float) -> bool:
        """Whether no request at or after this time can be inside the window."""
        return recorded_s >= self.to_s
