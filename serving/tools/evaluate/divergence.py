"""Per-token scores of a model on one window, with an optional reference."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from serving.errors import ModelError
from serving.tools.evaluate.scorer import Scorer, flat, sequences
from serving.tools.evaluate.statistics import Floats
from serving.tools.evaluate.windows import TextWindow


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
