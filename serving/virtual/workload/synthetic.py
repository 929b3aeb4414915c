"""Synthetic requests drawn from a rate and lengths, for cases without a trace."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.trace.draws import Gaps, LengthHistogram, histogram, random_stream
from serving.errors import ConfigError
from serving.virtual.workload.columns import BATCH, FloatArray, IntArray, RequestStream, TraceRequest


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Log-normal lengths, as in chats: many short ones, few very long ones.

    Attributes:
        mean: [tokens], before `low` and `high` cut. cv: standard deviation over mean. low, high: [tokens], inclusive.
    """

    mean: float
    cv: float
    low: int = 1
    high: int = 1 << 20

    def __post_init__(self) -> None:
        """Raises: ConfigError."""
        if not (0 < self.mean < math.inf and 0 <= self.cv < math.inf and 1 <= self.low <= self.high):
            raise ConfigError(f"{self} is no distribution of lengths: mean above 0, cv at least 0, 1 <= low <= high")

    def draw(self, count: int, rng: np.random.Generator) -> IntArray:
        """Draw lengths: [count] int64."""
        variance = math.log1p(self.cv**2)
        drawn = rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return np.clip(np.rint(drawn), self.low, self.high).astype(np.int64)


Lengths = int | Sequence[int] | LogNormalLengths
"""One length for all requests, lengths to draw from with equal probability, or a distribution. [tokens]"""

SYNTHETIC_BLOCK_TOKENS = 128
"""Engine block of the paper's deployment [tokens]; a common prefix is rounded to it, as caches share whole blocks."""


def synthetic_workload(
    rate_per_s: float,
    duration_s: float,
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    cv: float = 1.0,
    reuse: float = 0.0,
    seed: int = 0,
    *,
    block_tokens: int = SYNTHETIC_BLOCK_TOKENS,
) -> RequestStream:
    """Requests of a steady load, drawn lazily; each pass yields the same requests.

    Args:
        rate_per_s: mean. duration_s: requests arrive in [0, duration).
        cv: coefficient of variation of the gaps: 1 = Poisson, 0 = even, above 1 = bursts (gamma).
        reuse: share of each prompt that is a prefix common to all requests, rounded to whole blocks.
        block_tokens: tokens per prefix id; the engine's block size or a multiple of it.
    Raises: ConfigError for values that are not possible.
    """
    if not (0 < rate_per_s < math.inf and 0 < duration_s < math.inf):
        raise ConfigError(f"a load of {rate_per_s:g} requests/s for {duration_s:g} s: both must be above 0")
    if not (0 <= cv < math.inf and 0 <= reuse <= 1 and block_tokens >= 1):
        raise ConfigError(f"cv {cv:g}, reuse {reuse:g}, blocks of {block_tokens}: cv >= 0, reuse 0..1, blocks >= 1")
    stream = _Stream(
        rate_per_s, duration_s, _draws("prompt", prompt_tokens), _draws("output", output_tokens),
        cv, reuse, seed, block_tokens,
    )  # fmt: skip
    parts = [f"{rate_per_s:g} requests/s", f"prompts {_said(prompt_tokens)}", f"answers {_said(output_tokens)}"]
    parts += [f"cv {cv:g}"] * (cv != 1) + [f"reuse {reuse:.0%}"] * (reuse > 0)
    return RequestStream(
        f"synthetic, {', '.join(parts)}", stream, count=None, duration_s=duration_s, block_tokens=block_tokens
    )


def _draws(name: str, lengths: Lengths) -> LengthHistogram | LogNormalLengths:
    """The distribution to draw lengths from.

    Raises: ConfigError.
    """
    if isinstance(lengths, LogNormalLengths):
        return lengths
    values = [lengths] if isinstance(lengths, int) else list(lengths)
    if not values or min(values) < 1:
        raise ConfigError(f"{name} lengths must be at least 1 token, and one of them given")
    return histogram(values, [1.0] * len(values))


def _said(lengths: Lengths) -> str:
    if isinstance(lengths, LogNormalLengths):
        return f"{lengths.mean:g} on average"
    return str(lengths) if isinstance(lengths, int) else f"of {len(lengths)} lengths"


@dataclass(frozen=True, slots=True)
class _Stream:
    """The requests; each pass draws them from the same seed."""

    rate_per_s: float
    duration_s: float
    prompt: LengthHistogram | LogNormalLengths
    output: LengthHistogram | LogNormalLengths
    cv: float
    reuse: float
    seed: int
    block_tokens: int

    def __iter__(self) -> Iterator[TraceRequest]:
        prompts, outputs = random_stream(self.seed, "synthetic/prompt"), random_stream(self.seed, "synthetic/output")
        prefixes: dict[int, tuple[int, ...]] = {}
        for arrivals in self._arrivals():
            prompt = self.prompt.draw(len(arrivals), prompts)
            output = self.output.draw(len(arrivals), outputs)
            rows = zip(arrivals.tolist(), prompt.tolist(), output.tolist(), self._shared(prompt), strict=True)
            for arrival_s, prompt_tokens, output_tokens, blocks in rows:
                prefix = prefixes.get(blocks)
                if prefix is None:
                    prefix = prefixes[blocks] = tuple(range(blocks))
                yield TraceRequest(arrival_s, prompt_tokens, output_tokens, prefix)

    def _shared(self, prompt: IntArray) -> list[int]:
        """Number of leading blocks of each prompt that all prompts share, without partly filled ones."""
        shared = np.rint(prompt * self.reuse / self.block_tokens).astype(np.int64)
        whole: list[int] = np.minimum(shared, prompt // self.block_tokens).tolist()
        return whole

    def _arrivals(self) -> Iterator[FloatArray]:
        """Arrivals in [0, duration) [s]."""
        rng = random_stream(self.seed, "synthetic/arrivals")
        reached_s = 0.0
        while reached_s < self.duration_s:
            gaps = np.ones(BATCH) if self.cv == 0 else Gaps.GAMMA.draw(self.cv**-2, BATCH, rng)
            arrivals = reached_s + np.cumsum(gaps) / self.rate_per_s
            yield arrivals[: int(np.searchsorted(arrivals, self.duration_s))]
            reached_s = float(arrivals[-1])
