"""How far real times stray from predicted ones: jitter and spikes of steps.

Every draw is a function of only (seed, name, number): step 1,000 of an instance has the same factor independent of
earlier draws and of other instances. So a change somewhere in a simulation does not reshuffle the noise everywhere.

A draw is one 64-bit hash and a look-up: the hash's lower bits pick one of 4,096 equally likely quantiles of the
distribution, its upper ones decide about a spike. The table of quantiles makes the mean exact and bounds the
extremes: all values are between the first and the last entry (3.67 standard deviations for a log-normal).

    mean-preserving log-normal:  exp(sigma z - sigma^2 / 2), divided by the table's mean
"""

import math
from functools import cache
from hashlib import blake2b
from statistics import NormalDist

from hardware.errors import SpecError

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_ENTRIES = 4096
_SPIKE_BITS = 64 - 12
"""Bits of a hash above those that pick the entry."""
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
        """Mean of all factors."""

    def factor(self, step: int) -> float:
        """Factor on the time of step number `step` (0 or more)."""
        draw = _mix(self._key + step * _GAMMA)
        factor = self._factors[draw & 4095]
        return factor * self._spike if draw < self._cut else factor


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
    normal = NormalDist()
    return tuple(normal.inv_cdf((index + 0.5) / _ENTRIES) for index in range(_ENTRIES))


@cache
def _log_normal(sigma: float) -> tuple[float, ...]:
    """Quantiles of a log-normal with mean 1."""
    values = [math.exp(sigma * z) for z in _normal_quantiles()]
    mean = math.fsum(values) / _ENTRIES
    return tuple(value / mean for value in values)
