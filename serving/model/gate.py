"""Expert gate: routes each token to experts, with weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.architecture import GateShape
from serving.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Routing:
    """The gate's result.

    Args:
        experts: `[tokens, top_k] int64`, logical expert ids, in no particular order.
        weights: `[tokens, top_k] float32`.
    """

    experts: Tensor
    weights: Tensor


class Gate:
    """Scores experts in float32 and keeps the best, optionally only inside the best groups.

    DeepSeek-V3 (`noaux_tc`): sigmoid scores; a learned bias takes part in the choice but not in the weights; a group
    counts as its two best experts. DeepSeek-V2: softmax scores, no bias, a group counts as its best expert.

    Args:
        top_k: experts of a token.
        score: hidden -> experts, float32.
        bias: `[experts] float32`, choice bias, or None.
    """

    def __init__(self, shape: GateShape, top_k: int, score: Linear, bias: Tensor | None) -> None:
        self.score = score
        self.bias = bias
        self.sigmoid = shape.sigmoid
        self.top_k = top_k
        self.groups = shape.groups
        self.kept_groups = shape.kept_groups
        self.normalise = shape.normalise
        self.factor = shape.factor

    def __call__(self, x: Tensor) -> Routing:
        """Route.

        Args:
            x: `[tokens, hidden]`.
        """
        logits = self.score(x.float())
        # Through float64: the float32 sigmoid rounds differently at the unaligned end of a batch than inside it.
        scores = logits.double().sigmoid().float() if self.sigmoid else logits.softmax(-1)
        choice = scores if self.bias is None else scores + self.bias
        if self.groups > 1:
            choice = self._within_best_groups(choice)
        experts = choice.topk(self.top_k, -1, sorted=False).indices
        weights = scores.gather(1, experts)
        if self.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return Routing(experts, weights * self.factor)

    def _within_best_groups(self, choice: Tensor) -> Tensor:
        grouped = choice.view(choice.shape[0], self.groups, -1)
        worth = grouped.topk(2, -1).values.sum(-1) if self.sigmoid else grouped.amax(-1)
        kept = worth.topk(self.kept_groups, -1, sorted=False).indices
        hidden = torch.full_like(worth, float("-inf")).scatter_(1, kept, 0.0)
        return (grouped + hidden.unsqueeze(-1)).flatten(-2)
