"""From logits to tokens: penalties, filters, and one reproducible random number per token.

Order of operations, per row of float32 logits:

1. stop tokens are hidden until `min_tokens` are generated; `logit_bias` is added;
2. repetition penalty on tokens of prompt and output (a positive logit is divided, another multiplied), then frequency
   and presence penalties on tokens of the output; then tokens that the row's grammar forbids are removed;
3. `temperature = 0`: the largest logit is chosen, the lowest id on a tie. Otherwise logits are divided by the
   temperature and, as float64, turned into weights `w = exp(logit - max)`;
4. filters, each by value, so that equal weights are kept or removed together: `min_p` keeps `w >= min_p` (the best has
   1); `top_k` keeps weights at least as large as the k-th largest; `top_p` keeps the largest weights until their sum
   reaches `top_p` of the remaining sum;
5. the token is the first id, in ascending order of ids, whose running sum of kept weights exceeds `u * total`.

`u` is `uniform(seed, position)` and depends on nothing else, so a token depends neither on its batch nor on its
replica. Running sums in order of ids (not of weights) keep the choice stable against rounding noise in the logits: only
a `u` within the noise of a border can change the result, never two adjacent weights that swap ranks.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from serving.model.host_sampler import TOP_P_CANDIDATES, Mask, Sampled, changes_logits, uniform
from serving.values.sequence import SamplingParams, TokenLogprobs
from serving.values.step_plan import SampleOrder


def sample(logits: Tensor, orders: Sequence[SampleOrder], masks: Sequence[Mask] = ()) -> list[Sampled]:
    """Draw one token per row.

    Args:
        logits: `[rows, vocab] float32`, from the model; not modified.
        orders: one per row.
        masks: one per row, or none at all.
    """
    masked = [row for row, mask in enumerate(masks) if mask is not None]
    if not masked and all(_is_plain_greedy(order.sampling) for order in orders):
        return [Sampled(token, None) for token in logits.argmax(-1).tolist()]
    adjusted = _adjusted(logits, orders)
    if masked:
        adjusted = adjusted.clone() if adjusted is logits else adjusted
        forbidden = torch.from_numpy(~np.stack([mask for mask in masks if mask is not None]))
        rows = torch.tensor(masked, device=logits.device)
        adjusted[rows] = adjusted[rows].masked_fill(forbidden.to(logits.device), float("-inf"))
    tokens: list[int] = adjusted.argmax(-1).tolist()
    drawn = [row for row, order in enumerate(orders) if order.sampling.temperature > 0]
    if drawn:
        chosen = _draw(adjusted[drawn], [orders[row] for row in drawn])
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    logprobs = _asked_logprobs(logits, tokens, orders)
    return [Sampled(token, logprobs.get(row)) for row, token in enumerate(tokens)]


def token_logprobs(logits: Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprobs]:
    """Log-probabilities of given tokens and of the best alternatives, from unmodified logits.

    Args:
        logits: `[rows, vocab] float32`.
        tokens: one per row.
        top: alternatives per row; 0 = none.
    """
    logprobs = logits.log_softmax(-1)
    own: list[float] = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    if not top:
        return [TokenLogprobs(token, value) for token, value in zip(tokens, own, strict=True)]
    best = logprobs.topk(min(top, logits.shape[1]), -1)
    rows = zip(tokens, own, best.indices.tolist(), best.values.tolist(), strict=True)
    return [TokenLogprobs(token, value, tuple(zip(ids, values, strict=True))) for token, value, ids, values in rows]


def _is_plain_greedy(p: SamplingParams) -> bool:
    return p.temperature == 0 and p.logprobs is None and not changes_logits(p)


def _adjusted(logits: Tensor, orders: Sequence[SampleOrder]) -> Tensor:
    """Logits after mask, bias and penalties; the same tensor if no row requests any."""
    changed = [row for row, order in enumerate(orders) if changes_logits(order.sampling)]
    if not changed:
        return logits
    logits = logits.clone()
    for row in changed:
        _adjust_row(logits[row], orders[row])
    return logits


def _adjust_row(row: Tensor, order: SampleOrder) -> None:
    p = order.sampling
    if len(order.output) < p.min_tokens:
        row[[token for token in p.stop_token_ids if token < len(row)]] = float("-inf")
    if p.logit_bias:
        biased, biases = zip(*p.logit_bias, strict=True)
        row.index_add_(0, torch.tensor(biased, device=row.device), torch.tensor(biases, device=row.device))
    if p.repetition_penalty != 1:
        seen = torch.tensor(sorted({*order.prompt, *order.output}), device=row.device)
        value = row[seen]
        row[seen] = torch.where(value > 0, value / p.repetition_penalty, value * p.repetition_penalty)
    if (p.presence_penalty or p.frequency_penalty) and order.output:
        counts = Counter(order.output)
        ids = torch.tensor(list(counts), device=row.device)
        times = torch.tensor(list(counts.values()), dtype=row.dtype, device=row.device)
        row[ids] -= p.frequency_penalty * times + p.presence_penalty


def _draw(logits: Tensor, orders: Sequence[SampleOrder]) -> list[int]:
    """Inverse distribution function over the kept weights, in order of ids."""
    params = [order.sampling for order in orders]
    scaled = logits.double() / _column([p.temperature for p in params], logits)
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
    sums = _filtered(weights, params).cumsum(-1)
    at = [uniform(o.sampling.seed, len(o.prompt) + len(o.output)) for o in orders]
    total = sums[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # with a product rounded up to the total, no id is found
    target = torch.minimum(_column(at, logits) * total, below)
    found = torch.searchsorted(sums, target, right=True)[:, 0]
    # NaN weights select an index past the last id: such a request must not fail its batch.
    tokens: list[int] = found.clamp_(max=logits.shape[1] - 1).tolist()
    return tokens


def _filtered(weights: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Weights, with those that a row's filters reject set to zero."""
    if any(p.min_p > 0 for p in params):
        weights = weights.masked_fill(weights < _column([p.min_p for p in params], weights), 0.0)
    vocab = weights.shape[1]
    ks = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
    limited = [k for k in ks if k < vocab]
    if limited:
        largest = weights.topk(max(limited), -1).values
        columns = torch.tensor([min(k, largest.shape[1]) - 1 for k in ks], device=weights.device)
        floor = largest.gather(1, columns[:, None])
        floor[[row for row, k in enumerate(ks) if k == vocab]] = 0.0
        weights = weights.masked_fill(weights < floor, 0.0)
    if any(p.top_p < 1 for p in params):
        weights = weights.masked_fill(weights < _nucleus_floor(weights, [p.top_p for p in params]), 0.0)
    return weights


def _nucleus_floor(weights: Tensor, top_p: Sequence[float]) -> Tensor:
    """Per row, the weight at which the sum of the largest weights reaches its share: `[rows, 1]`.

    The share is usually reached within the first few hundred candidates; the whole vocabulary is sorted only if it is
    not for some row. Both ways add the same numbers in the same order.
    """
    share = _column(top_p, weights)
    target = share * weights.sum(-1, keepdim=True)
    candidates = weights.topk(min(TOP_P_CANDIDATES, weights.shape[1]), -1).values
    sums = candidates.cumsum(-1)
    if bool((sums[:, -1:] < target).any()):
        candidates = weights.sort(-1, descending=True).values
        sums = candidates.cumsum(-1)
    reached = torch.searchsorted(sums, target).clamp_(max=candidates.shape[1] - 1)
    return candidates.gather(1, reached).masked_fill(share >= 1, 0.0)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]


def _asked_logprobs(logits: Tensor, tokens: Sequence[int], orders: Sequence[SampleOrder]) -> dict[int, TokenLogprobs]:
    asked = [row for row, order in enumerate(orders) if order.sampling.logprobs is not None]
    if not asked:
        return {}
    wanted = [orders[row].sampling.logprobs or 0 for row in asked]
    found = token_logprobs(logits[asked], [tokens[row] for row in asked], max(wanted))
    cut = [TokenLogprobs(f.token, f.logprob, f.top[:n]) for f, n in zip(found, wanted, strict=True)]
    entries = dict(zip(asked, cut, strict=True))
    for row in asked:
        if ids := orders[row].sampling.logprob_ids:
            entries[row] = TokenLogprobs(entries[row].token, entries[row].logprob, _named_logprobs(logits[row], ids))
    return entries


def _named_logprobs(logits: Tensor, ids: Sequence[int]) -> tuple[tuple[int, float], ...]:
    values: list[float] = logits.log_softmax(-1)[list(ids)].tolist()
    return tuple(sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0])))
