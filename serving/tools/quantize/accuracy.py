"""Distance of a quantised model from the original on held-out text: perplexity, divergence, agreement."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.tools.quantize.trial import Original

_ROWS = 512


@dataclass(frozen=True, slots=True)
class ModelAccuracy:
    """One model on held-out tokens.

    Args:
        perplexity: of the text.
        divergence: mean KL(original || this) of the next token's distribution [nat]; a few tokens that were routed to
            other experts can make most of it.
        median_divergence: of the tokens.
        agreement: share of tokens at which both models find the same next token most likely.
        draft_agreement: the same for the first draft layer's tokens; None without one.
    """

    perplexity: float
    divergence: float
    median_divergence: float
    agreement: float
    draft_agreement: float | None


def measure(
    original: Original, trials: Mapping[str, Original], labels: Tensor
) -> tuple[float, dict[str, ModelAccuracy]]:
    """Compare trials with the original, a few rows at a time.

    Args:
        labels: `[tokens] int64`, the held-out text's next tokens.
    Returns: the original's perplexity, and each trial's accuracy.
    """
    losses: list[Tensor] = []
    found: dict[str, list[Tensor]] = {name: [] for name in trials}
    for first in range(0, labels.shape[0], _ROWS):
        rows = slice(first, first + _ROWS)
        exact = original.logits(rows).log_softmax(-1)
        losses.append(_loss(exact, labels[rows]))
        for name, trial in trials.items():
            found[name].append(_compared(exact, trial.logits(rows).log_softmax(-1), labels[rows]))
    accuracy = {name: _accuracy(torch.cat(parts, 1), _drafts(original, trials[name])) for name, parts in found.items()}
    return _perplexity(torch.cat(losses)), accuracy


def _compared(exact: Tensor, other: Tensor, labels: Tensor) -> Tensor:
    """Loss, divergence and agreement of each token, `[3, tokens] float64`."""
    divergence = (exact.exp() * (exact - other)).sum(-1)
    agreed = exact.argmax(-1) == other.argmax(-1)
    return torch.stack([_loss(other, labels), divergence.double(), agreed.double()])


def _loss(logprobs: Tensor, labels: Tensor) -> Tensor:
    return -logprobs.gather(1, labels.unsqueeze(1)).squeeze(1).double()


def _perplexity(losses: Tensor) -> float:
    return float(losses.mean().exp())


def _drafts(original: Original, trial: Original) -> float | None:
    if not original.drafted:
        return None
    return float((original.drafted[0] == trial.drafted[0]).double().mean())


def _accuracy(tokens: Tensor, drafts: float | None) -> ModelAccuracy:
    losses, divergence, agreed = tokens
    middle = float(divergence.median())
    return ModelAccuracy(_perplexity(losses), float(divergence.mean()), middle, float(agreed.mean()), drafts)
