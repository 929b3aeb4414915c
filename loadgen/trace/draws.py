"""Random streams, gaps between requests, and lengths: sources of synthetic requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def random_stream(seed: int, name: str) -> np.random.Generator:
    """An independent stream for each component, so that the draws of one do not affect the others."""
    digest = blake2b(f"{seed}/workload/{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


class Gaps(StrEnum):
    """Family of the gaps between requests, with mean 1 for every shape."""

    GAMMA = "Gamma"
    WEIBULL = "Weibull"

    def draw(self, shape: float, count: int, rng: np.random.Generator) -> FloatArray:
        """Gaps: [count] float64. Effects: advances `rng`."""
        if self is Gaps.GAMMA:
            return rng.standard_gamma(shape, count) / shape
        return rng.weibull(shape, count) / math.gamma(1 + 1 / shape)

    def draw_around(self, shape: float, rng: np.random.Generator) -> float:
        """The gap that an arbitrary moment falls into: long ones are met in proportion to their length.

        Effects: advances `rng`.
        """
        if self is Gaps.GAMMA:
            return float(rng.standard_gamma(shape + 1)) / shape
        return math.pow(float(rng.standard_gamma(1 + 1 / shape)), 1 / shape) / math.gamma(1 + 1 / shape)


def stationary_events(gaps: Gaps, shape: float, expected: float, rng: np.random.Generator) -> FloatArray:
    """Events in [0, expected) of a process of unit rate that has been under way forever: `expected` on average.

    A process that starts with a whole gap, or an event at 0, has too few or too many events in a short window: with
    the bursty clients of real services by up to a half.

    Effects: advances `rng`.
    """
    end = (1.0 - float(rng.random())) * gaps.draw_around(shape, rng)
    parts: list[FloatArray] = []
    while end < expected:
        drawn = gaps.draw(shape, 64 + int(1.1 * (expected - end)), rng)
        times = end + np.concatenate((np.zeros(1), np.cumsum(drawn)))
        parts.append(times[:-1])
        end = float(times[-1])
    if not parts:
        return np.empty(0)
    events = np.concatenate(parts)
    return events[: int(np.searchsorted(events, expected))]


@dataclass(frozen=True, slots=True, eq=False)
class LengthHistogram:
    """Lengths with their probabilities. `values`: [n] int64; `cumulative`: [n] float64, the last is 1."""

    values: IntArray
    cumulative: FloatArray

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Lengths: [count] int64. Effects: advances `rng`."""
        places = np.searchsorted(self.cumulative, rng.random(count), side="right")
        return self.values[np.minimum(places, len(self.values) - 1)]


def histogram(values: Sequence[float], weights: Sequence[float]) -> LengthHistogram:
    """A histogram of lengths, rounded to whole tokens and at least 1.

    Raises: ValueError for no lengths, or weights that are negative, not finite, or zero in sum.
    """
    total = math.fsum(weights)
    if not values or not 0 < total < math.inf or min(weights) < 0:
        raise ValueError("weights must be finite and not negative, and one of them above 0")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("lengths must be finite")
    whole = np.maximum(1, np.rint(np.array(values, np.float64))).astype(np.int64)
    return LengthHistogram(whole, np.cumsum(np.array(weights, np.float64)) / total)


# Lengths made longer or shorter: one rule for all tools.
#
# A prefix id continues to denote the same block, and the block changes its size: whole blocks stay whole and partly
# filled ones partly filled. Ids are not touched, so equal prefixes stay equal, unequal ones unequal, and the share of
# blocks that repeat is exactly the trace's. The price: a block has whole tokens, so that a factor of 1.001 on blocks of
# 512 makes 513, which is 1.002.
#
#     factor 0.25:   |   512   |   512   | 300 |   ->   | 128 | 128 | 75 |      the same three ids
#
# Halves are rounded to the even neighbour, as NumPy does.


def scaled_block(block_tokens: int, factor: float) -> int:
    """The size of a block after scaling [tokens]; 0 if that is less than half a token."""
    return int(block_tokens * factor + 0.5)


def scaled_lengths(tokens: IntArray | int, factor: float) -> IntArray:
    """Lengths times a factor, rounded; may be 0."""
    return np.asarray(np.rint(np.asarray(tokens) * factor), np.int64)


def scaled_prompts(tokens: IntArray | int, block_tokens: int, factor: float) -> IntArray:
    """Prompt lengths: block by block, the rest for itself. `block_tokens`: before scaling."""
    block = scaled_block(block_tokens, factor)
    whole, rest = np.divmod(np.asarray(tokens), block_tokens)
    partial = np.clip(scaled_lengths(rest, block / block_tokens), 1, max(1, block - 1))
    return np.asarray(whole * block + np.where(rest > 0, partial, 0), np.int64)
