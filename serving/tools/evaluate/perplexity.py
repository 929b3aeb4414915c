"""Figures of all windows of a text together: perplexity, and the distance from a reference."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from serving.errors import ModelError
from serving.tools.evaluate.intervals import Estimate, Floats, bootstrap_mean
from serving.tools.evaluate.scorer import Scorer, flat, sequences
from serving.tools.evaluate.texts import Text, TextWindow

# Per-token scores of a model on one window, with an optional reference.


@dataclass(frozen=True, slots=True)
class WindowScores:
    """Per target of one window, float64.

    Args:
        nats: `-log p(target)` by the model.
        reference_nats: the same by the reference; empty without one, as are the next two.
        divergence: `KL(reference || model)` of the whole next-token distribution [nat].
        agreement: 1 where both find the same token most likely.
        begins: whether it is the first window of its document.
    """

    nats: Floats
    reference_nats: Floats
    divergence: Floats
    agreement: Floats
    begins: bool = True


def score_windows(windows: Sequence[TextWindow], model: Scorer, reference: Scorer | None) -> Iterator[WindowScores]:
    """Score windows, a batch of them at a time, in the order given.

    Raises: EngineError if a pass fails; ModelError if a model's output is no number.
    Effects: overwrites the caches.
    """
    for first in range(0, len(windows), model.batch):
        part = windows[first : first + model.batch]
        fed = sequences([window.tokens for window in part])
        own = flat(model.hidden(fed))
        other = flat(reference.hidden(fed)) if reference is not None else [None] * len(part)
        for window, ours, theirs in zip(part, own, other, strict=True):
            yield _score(window, model, ours, reference, theirs)


def _score(
    window: TextWindow, model: Scorer, ours: Tensor, reference: Scorer | None, theirs: Tensor | None
) -> WindowScores:
    """One window, its rows taken a block at a time: logits of a long window do not fit."""
    columns: list[list[Tensor]] = [[], [], [], []]
    size = model.rows_at_once
    with torch.inference_mode():
        for begin in range(0, len(window.targets), size):
            targets = torch.tensor(window.targets[begin : begin + size], device=ours.device)[:, None]
            rows = slice(window.first_row + begin, window.first_row + begin + len(targets))
            own = model.model.logits(ours[rows]).log_softmax(-1)
            columns[0].append(-own.gather(1, targets)[:, 0])
            if reference is not None and theirs is not None:
                other = reference.model.logits(theirs[rows]).log_softmax(-1)
                columns[1].append(-other.gather(1, targets)[:, 0])
                columns[2].append(divergence(other, own))
                columns[3].append((own.argmax(-1) == other.argmax(-1)).float())
    nats, reference_nats, kl, agreement = (_array(parts) for parts in columns)
    for what, values in (("model", nats), ("reference", reference_nats)):
        if np.isnan(values).any():
            raise ModelError(f"the {what} gives log-probabilities that are not numbers (NaN): its weights are damaged")
    return WindowScores(nats, reference_nats, kl, agreement, window.begins)


def divergence(reference: Tensor, model: Tensor) -> Tensor:
    """`KL(reference || model)` [nat] of each row.

    Args:
        reference, model: log-probabilities `[rows, vocab] float32`.
    Returns: `[rows]`, never below zero: what rounding leaves there is no divergence.
    """
    # A token that the reference excludes (-inf) adds nothing, for any model.
    terms = reference.exp() * (reference - model)
    return terms.masked_fill_(reference == float("-inf"), 0.0).sum(-1).clamp_min_(0.0)


def _array(parts: list[Tensor]) -> Floats:
    return torch.cat(parts).double().cpu().numpy() if parts else np.empty(0)


# Figures of all windows of a text together: perplexity, and the distance from a reference.


@dataclass(frozen=True, slots=True)
class PerplexityComparison:
    """A model compared with its reference on one text.

    Args:
        perplexity: the reference's.
        ratio: the model's perplexity divided by it, from the paired difference of each token.
        divergence: mean `KL(reference || model)` [nat per token].
        divergence_median, divergence_p99, divergence_max: over tokens.
        agreement: share of positions where both find the same token likeliest.
    """

    perplexity: Estimate
    ratio: Estimate
    divergence: Estimate
    divergence_median: float
    divergence_p99: float
    divergence_max: float
    agreement: Estimate


@dataclass(frozen=True, slots=True)
class TextResult:
    """One text, or several together.

    Args:
        tokens: predicted. bits_per_byte: independent of the tokenizer. per_word: perplexity of a whole word.
    """

    name: str
    documents: int
    tokens: int
    perplexity: Estimate
    bits_per_byte: float
    per_word: float | None
    compared: PerplexityComparison | None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def sum_up(name: str, texts: Sequence[Text], scores: Sequence[WindowScores]) -> TextResult:
    """The figures of one text, or of several as if they were one.

    Args:
        scores: of all windows of these texts.
    """
    nats = _documents(scores, "nats")
    total = float(sum(part.sum() for part in nats))
    words = sum(text.words for text in texts)
    compared = _compare(scores) if len(scores[0].reference_nats) else None
    return TextResult(
        name=name,
        documents=sum(len(text.documents) for text in texts),
        tokens=sum(len(part) for part in nats),
        perplexity=bootstrap_mean(nats).map(_exp),
        bits_per_byte=total / math.log(2) / max(1, sum(text.nbytes for text in texts)),
        per_word=_exp(total / words) if words else None,
        compared=compared,
    )


def _compare(scores: Sequence[WindowScores]) -> PerplexityComparison:
    kl = np.concatenate([score.divergence for score in scores])
    reference = _documents(scores, "reference_nats")
    median, p99 = np.quantile(kl, (0.5, 0.99))
    return PerplexityComparison(
        perplexity=bootstrap_mean(reference).map(_exp),
        ratio=bootstrap_mean([a - b for a, b in zip(_documents(scores, "nats"), reference, strict=True)]).map(_exp),
        divergence=bootstrap_mean(_documents(scores, "divergence")),
        divergence_median=float(median),
        divergence_p99=float(p99),
        divergence_max=float(kl.max()),
        agreement=bootstrap_mean(_documents(scores, "agreement")),
    )


def _documents(
    scores: Sequence[WindowScores], name: Literal["nats", "reference_nats", "divergence", "agreement"]
) -> list[Floats]:
    """One of the columns of scores, an array per document: a short stride must not cut it into many small parts."""
    parts: list[list[Floats]] = []
    for score in scores:
        if score.begins or not parts:
            parts.append([])
        parts[-1].append(getattr(score, name))
    return [np.concatenate(part) for part in parts]


def _exp(nats: float) -> float:
    """Exponential as `math.exp`, but a hopeless model is infinitely surprised instead of an error."""
    return math.exp(nats) if nats < 700 else math.inf
