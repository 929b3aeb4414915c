"""Figures of all windows of a text together: perplexity, and the distance from a reference."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from serving.tools.evaluate.divergence import WindowScores
from serving.tools.evaluate.statistics import Estimate, Floats, bootstrap_mean
from serving.tools.evaluate.texts import Text


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
