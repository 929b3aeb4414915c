"""Which experts a token goes to, and with which weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.config import Architecture
from serving.model.linear import Linear


@dataclass(frozen=True, slots=True)
class Routing:
    """The gate's answer.

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
        score: hidden -> experts, float32.
        bias: `[experts] float32`, choice bias; None for DeepSeek-V2.
    """

    def __init__(self, config: Architecture, score: Linear, bias: Tensor | None) -> None:
        self.score = score
        self.bias = bias
        self.sigmoid = config.topk_method == "noaux_tc"
        self.top_k = config.num_experts_per_tok
        self.groups = 1 if config.topk_method == "greedy" else config.n_group
        self.kept_groups = config.topk_group
        self.normalise = config.norm_topk_prob
        self.factor = config.routed_scaling_factor

    def __call__(self, x: Tensor) -> Routing:
        """Route.

        Args:
            x: `[tokens, hidden]`.
        """
        logits = self.score(x.float())
        # Through float64: the float32 sigmoid rounds differently at the ragged end of a batch than inside it.
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
