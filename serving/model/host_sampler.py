"""Sampling in numpy, for logits in the memory of a process without torch; `sampler.py` defines the rules.

Each row is computed by itself, so that its results do not depend on the other rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.values.sequence import SamplingParams, TokenLogprobs
from serving.values.step_plan import SampleOrder

Row = NDArray[np.float32]
Mask = NDArray[np.bool_] | None
"""`[vocab]`: tokens that may be sampled, at least one; None = all of them."""

TOP_P_CANDIDATES = 512
"""Candidates sorted for top_p before falling back to sorting the whole vocabulary."""
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampling result of one row."""

    token: int
    logprobs: TokenLogprobs | None


def mix(x: int) -> int:
    """The finaliser of splitmix64: a bijection of 64-bit integers that scatters adjacent ones.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    """The random number of one token, in [0, 1), 53 bits: `mix(mix(seed + g) + g * (position + 1)) >> 11`.

    g is 2^64 divided by the golden ratio. The seed is mixed first, so that the sequences of adjacent seeds share
    no numbers.
    """
    return (mix(mix(seed + _GOLDEN) + _GOLDEN * (position + 1)) >> 11) * 2.0**-53


def changes_logits(p: SamplingParams) -> bool:
    """Whether logits are adjusted before they are filtered."""
    return bool(
        p.min_tokens or p.logit_bias or p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
    )


def sample(logits: Row, orders: Sequence[SampleOrder], masks: Sequence[Mask] = ()) -> list[Sampled]:
    """Draw one token per row.

    Args:
        logits: `[rows, vocab]`; not modified.
        orders: one per row.
        masks: one per row, or none at all.
    """
    given = masks or [None] * len(orders)
    with np.errstate(all="ignore"):  # an extreme penalty must not fail the row's batch
        return [_sampled(row, order, mask) for row, order, mask in zip(logits, orders, given, strict=True)]


def token_logprobs(logits: Row, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Log-probabilities of given tokens and of the best alternatives, from unmodified logits.

    Args:
        logits: `[rows, vocab]`.
        tokens: one per row.
        top: alternatives per row; 0 = none.
    """
    return [_logprobs(row, token, top) for row, token in zip(logits, tokens, strict=True)]


def _sampled(logits: Row, order: SampleOrder, mask: Mask) -> Sampled:
    p = order.sampling
    adjusted = _adjusted(logits, order) if changes_logits(p) else logits
    if mask is not None:
        adjusted = np.where(mask, adjusted, np.float32(-np.inf))
    token = _draw(adjusted, order) if p.temperature > 0 else int(adjusted.argmax())
    if p.logprobs is None:
        return Sampled(token, None)
    if not p.logprob_ids:
        return Sampled(token, _logprobs(logits, token, p.logprobs))
    values = _log_softmax(logits)
    named = sorted(((id_, float(values[id_])) for id_ in p.logprob_ids), key=lambda pair: (-pair[1], pair[0]))
    return Sampled(token, TokenLogprobs(token, float(values[token]), tuple(named)))


def _adjusted(logits: Row, order: SampleOrder) -> Row:
    p, row = order.sampling, logits.copy()
    if len(order.output) < p.min_tokens:
        row[[token for token in p.stop_token_ids if token < len(row)]] = -np.inf
    if p.logit_bias:
        biased, biases = zip(*p.logit_bias, strict=True)
        np.add.at(row, list(biased), np.array(biases, np.float32))
    if p.repetition_penalty != 1:
        seen = sorted({*order.prompt, *order.output})
        value = row[seen]
        row[seen] = np.where(value > 0, value / p.repetition_penalty, value * p.repetition_penalty)
    if (p.presence_penalty or p.frequency_penalty) and order.output:
        counts = Counter(order.output)
        times = np.array(list(counts.values()), np.float32)
        row[list(counts)] -= p.frequency_penalty * times + p.presence_penalty
    return row


def _draw(row: Row, order: SampleOrder) -> int:
    """Inverse distribution function over the kept weights, in order of ids."""
    scaled = row.astype(np.float64) / order.sampling.temperature
    sums = _filtered(np.exp(scaled - scaled.max()), order.sampling).cumsum()
    total = sums[-1]
    below = np.nextafter(total, 0.0)  # with a product rounded up to the total, no id is found
    at = uniform(order.sampling.seed, len(order.prompt) + len(order.output))
    # NaN weights select an index past the last id: such a request must not fail its batch.
    return min(int(np.searchsorted(sums, min(at * total, below), side="right")), len(row) - 1)


def _filtered(weights: NDArray[np.float64], p: SamplingParams) -> NDArray[np.float64]:
    """Weights, with those that the filters reject set to zero."""
    if p.min_p > 0:
        weights = np.where(weights < p.min_p, 0.0, weights)
    if 0 < p.top_k < len(weights):
        weights = np.where(weights < np.partition(weights, -p.top_k)[-p.top_k], 0.0, weights)
    if p.top_p < 1:
        weights = np.where(weights < _nucleus_floor(weights, p.top_p), 0.0, weights)
    return weights


def _nucleus_floor(weights: NDArray[np.float64], share: float) -> float:
    """The weight at which the sum of the largest weights reaches its share."""
    target, most = share * weights.sum(), min(TOP_P_CANDIDATES, len(weights))
    candidates = np.sort(np.partition(weights, -most)[-most:])[::-1]
    sums = candidates.cumsum()
    if sums[-1] < target:
        candidates = np.sort(weights)[::-1]
        sums = candidates.cumsum()
    return float(candidates[min(int(np.searchsorted(sums, target)), len(candidates) - 1)])


def _logprobs(logits: Row, token: int, top: int) -> TokenLogprobs:
    values = _log_softmax(logits)
    own = float(values[token])
    if not top:
        return TokenLogprobs(token, own)
    top = min(top, len(values))
    best: Any = np.argpartition(-values, top - 1)[:top]
    best = best[np.lexsort((best, -values[best]))]
    return TokenLogprobs(token, own, tuple(zip(best.tolist(), values[best].tolist(), strict=True)))


def _log_softmax(logits: Row) -> Row:
    shifted = logits - logits.max()
    return shifted - np.float32(np.log(np.exp(shifted).sum(dtype=np.float64)))
