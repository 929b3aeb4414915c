"""How far real times stray from predicted ones: jitter and spikes of steps, tails of kernels, slow dies.

Every draw is a function of (seed, name, number) and of nothing else: step 1,000 of an instance has the same factor
whether or not steps before it were drawn, and whatever other instances draw. So a change somewhere in a simulation
does not reshuffle the noise everywhere.

A draw is one 64-bit hash and a look-up: the hash's lower bits pick one of 4,096 equally likely quantiles of the
distribution, its upper ones decide about a spike. The table of quantiles makes the mean exact and bounds the
extremes: nothing lies outside the first and the last entry (3.67 standard deviations for a log-normal).

    mean-preserving log-normal:  exp(sigma z - sigma^2 / 2), divided by the table's mean
    kernel tail:                 low + (mean - low) * log-normal, sigma chosen so that the last entry is the highest
"""

import math
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from statistics import NormalDist

from hardware.errors import SpecError

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_ENTRIES = 4096
_SPIKE_BITS = 64 - 12
"""Bits of a hash above those that pick the entry."""
_WIDEST_SIGMA = 3.0
_HALVINGS = 50
"""Of the search for sigma: 3 / 2^50 is the last bit of the result."""


@dataclass(frozen=True, slots=True)
class KernelTail:
    """Published spread of one kernel's execution times, all ranks and layers of a decode step together.

    Attributes:
        mean_s, low_s, high_s: as measured.
        source: where they stand.
    Raises: SpecError if they are not in order.
    """

    mean_s: float
    low_s: float
    high_s: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.low_s < self.mean_s < self.high_s < math.inf:
            raise SpecError(f"kernel times {self.low_s}, {self.mean_s}, {self.high_s} s are not low < mean < high")


DISPATCH_TAIL = KernelTail(234e-6, 185e-6, 1231e-6, "xDeepServe (arXiv 2508.02520) 7.1, kernels of a decode step")
COMBINE_TAIL = KernelTail(312e-6, 165e-6, 2939e-6, "xDeepServe (arXiv 2508.02520) 7.1, kernels of a decode step")

PRODUCTION_SIGMA = 0.2
"""Assumed, with the two below, to look like production: spread of the dispatch and combine part of decode steps."""
PRODUCTION_SPIKE_SHARE = 0.01
PRODUCTION_SPIKE_FACTOR = 5.0
PRODUCTION_MOE_SHARE = 0.357
"""Dispatch and combine as a part of a decode step: 15.3 and 20.4 % (xDeepServe 7.1)."""


class StepVariation:
    """Factors by which the steps of one component are longer or shorter than predicted.

    The log-normal part has mean 1, so that jitter alone does not change how fast a system is on average; spikes come
    on top and do (`mean`).
    """

    __slots__ = ("_cut", "_factors", "_key", "_spike", "mean")

    def __init__(self, sigma: float, spike_share: float, spike_factor: float, seed: int, name: str) -> None:
        """
        Args:
            sigma: standard deviation of the logarithm, 0..1; 0 for no jitter.
            spike_share: of the steps, 0..1.
            spike_factor: what a spike multiplies its step with; at least 1.
            seed, name: the stream; every component needs a name of its own.
        Raises: SpecError if a number is out of its range.
        """
        if not 0 <= sigma <= 1 or not 0 <= spike_share <= 1 or not 1 <= spike_factor < math.inf:
            raise SpecError(
                f"step variation: sigma {sigma}, spike share {spike_share}, spike factor {spike_factor}; "
                "sigma and share go from 0 to 1, the factor is finite and at least 1"
            )
        self._key = _stream(seed, name)
        self._factors = _log_normal(sigma)
        self._spike = spike_factor
        self._cut = round(spike_share * (1 << _SPIKE_BITS)) << 12
        self.mean = 1.0 + spike_share * (spike_factor - 1.0)
        """Of all factors."""

    @classmethod
    def production(cls, seed: int, name: str) -> "StepVariation":
        """Jitter and spikes of dispatch and combine in production.

        They are `PRODUCTION_MOE_SHARE` of a decode step: the whole step varies by 1 + share * (factor - 1).
        """
        return cls(PRODUCTION_SIGMA, PRODUCTION_SPIKE_SHARE, PRODUCTION_SPIKE_FACTOR, seed, name)

    def factor(self, step: int) -> float:
        """What step number `step` (0 or more) is multiplied with. Effects: none."""
        draw = _mix(self._key + step * _GAMMA)
        factor = self._factors[draw & 4095]
        return factor * self._spike if draw < self._cut else factor


class KernelVariation:
    """Factors of one kernel's executions around their mean, with a tail as published.

    The factors have mean 1 and lie within low / mean and high / mean. That the highest published time is one of some
    ten thousand executions is assumed; the number is not given.
    """

    __slots__ = ("_factors", "_key")

    def __init__(self, tail: KernelTail, seed: int, name: str) -> None:
        """
        Raises: SpecError if no log-normal has such a tail (the highest time is too far from the mean).
        """
        self._key = _stream(seed, name)
        self._factors = _tail_factors(tail)

    def factor(self, execution: int) -> float:
        """What execution number `execution` (0 or more) is multiplied with. Effects: none."""
        return self._factors[_mix(self._key + execution * _GAMMA) & 4095]


def straggler_factor(
    die: str, seed: int, sigma: float = 0.0, slow_share: float = 0.0, slow_factor: float = 1.5
) -> float:
    """How much slower than its peers one die is, for a whole run.

    Args:
        die: its name; the draw depends on nothing but this and the seed, so a fleet may grow without others changing.
        sigma: spread of healthy dies; their factors are log-normal with mean 1.
        slow_share: of dies that are slow, 0..1.
        slow_factor: what a slow die's factor is multiplied with; at least 1.
    Returns: a factor on step times; a synchronous group is as slow as its largest.
    Raises: SpecError if a number is out of its range.
    Effects: none.
    """
    return StepVariation(sigma, slow_share, slow_factor, seed, f"straggler/{die}").factor(0)


def _stream(seed: int, name: str) -> int:
    """The key of one component's stream. Python's own hash changes from run to run, blake2b does not."""
    return int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


def _mix(state: int) -> int:
    """64 random bits of a counter (splitmix64's output function)."""
    state &= _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


@cache
def _normal_quantiles() -> tuple[float, ...]:
    """The middles of equally likely pieces of the standard normal distribution, ascending."""
    normal = NormalDist()
    return tuple(normal.inv_cdf((index + 0.5) / _ENTRIES) for index in range(_ENTRIES))


@cache
def _log_normal(sigma: float) -> tuple[float, ...]:
    """Quantiles of a log-normal with mean 1."""
    values = [math.exp(sigma * z) for z in _normal_quantiles()]
    mean = math.fsum(values) / _ENTRIES
    return tuple(value / mean for value in values)


@cache
def _tail_factors(tail: KernelTail) -> tuple[float, ...]:
    """Quantiles of a kernel's factors: mean 1, the last one high / mean."""
    target = (tail.high_s - tail.low_s) / (tail.mean_s - tail.low_s)
    below, above = 0.0, _WIDEST_SIGMA
    if _highest(above) < target:
        raise SpecError(f"the highest kernel time is {target:.0f} times as far from the lowest as the mean; too far")
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        below, above = (middle, above) if _highest(middle) < target else (below, middle)
    low, spread = tail.low_s / tail.mean_s, 1.0 - tail.low_s / tail.mean_s
    return tuple(low + spread * value for value in _log_normal(above))


def _highest(sigma: float) -> float:
    """The last quantile of a log-normal with mean 1; grows with sigma in the range that is used."""
    values = [math.exp(sigma * z) for z in _normal_quantiles()]
    return values[-1] * _ENTRIES / math.fsum(values)
