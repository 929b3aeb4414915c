"""Routed experts in four separate steps: route -> dispatch -> grouped compute -> combine.

The steps exchange plain values (`Routing`, `Dispatched`), and compute receives only rows grouped by expert with their
counts. Expert parallelism replaces dispatch and combine by transfers, so that each rank receives the groups of its own
experts; gate and compute do not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.model.architecture import ClampedGate, GateShape
from serving.model.layers import Mlp, swiglu
from serving.model.linear import Linear, PlainLinear

# Expert gate: routes each token to experts, with weights.


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


# Routed experts in four separate steps: route -> dispatch -> grouped compute -> combine.


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Token rows copied once per chosen expert, grouped by expert.

    Args:
        rows: `[tokens * top_k, hidden]`, expert 0's rows first.
        counts: `[experts] int64`, rows of each expert.
        places: `[tokens * top_k] int64`, index in `rows` of the copy for (token, choice).
    """

    rows: Tensor
    counts: Tensor
    places: Tensor


def dispatch(x: Tensor, routing: Routing, num_experts: int) -> Dispatched:
    """Group token rows by expert.

    Args:
        x: `[tokens, hidden]`.
    """
    top_k = routing.experts.shape[1]
    chosen = routing.experts.flatten()
    order = chosen.argsort(stable=True)
    # Not bincount: it reads the values on the host, which a recorded CUDA graph cannot do.
    counts = chosen.new_zeros(num_experts).scatter_add_(0, chosen, torch.ones_like(chosen))
    places = torch.empty_like(order)
    places[order] = torch.arange(order.shape[0], device=order.device)
    return Dispatched(x.index_select(0, order.div(top_k, rounding_mode="floor")), counts, places)


def combine(outputs: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of each token's expert outputs, accumulated in float32 in the order of its choices.

    Args:
        outputs: `[tokens * top_k, hidden]`, grouped by expert.
        places: `[tokens * top_k] int64`.
        weights: `[tokens, top_k] float32`.
    Returns: `[tokens, hidden]`, outputs' dtype.
    """
    bags = places.view(weights.shape)
    return F.embedding_bag(bags, outputs, per_sample_weights=weights.to(outputs.dtype), mode="sum")


class ExpertCompute(Protocol):
    """Computation of a set of experts on rows that are grouped by expert."""

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        """`[rows, hidden] -> [rows, hidden]`, same order; `counts[e]` rows belong to expert e."""
        ...


class LocalExperts:
    """All experts in this process, one product per expert that has rows.

    Args:
        gate_up: per expert, hidden -> gate ++ up.
        down: per expert, width -> hidden.
        clamped: see `swiglu`.
    """

    def __init__(self, gate_up: Sequence[Linear], down: Sequence[Linear], clamped: ClampedGate | None = None) -> None:
        self.gate_up = tuple(gate_up)
        self.down = tuple(down)
        self.clamped = clamped

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        active = [(e, n) for e, n in enumerate(counts.tolist()) if n]
        sizes = [n for _, n in active]
        parts = [self.gate_up[e](part) for (e, _), part in zip(active, rows.split_with_sizes(sizes), strict=True)]
        inner = swiglu(torch.cat(parts), self.clamped)
        return torch.cat(
            [self.down[e](part) for (e, _), part in zip(active, inner.split_with_sizes(sizes), strict=True)]
        )


class GroupedExperts:
    """All experts in this process as one grouped product, without reading the counts on the host.

    For CUDA in bfloat16, where waiting for counts on the host costs more than the products.

    Args:
        gate_up: `[experts, 2 * width, hidden]`.
        down: `[experts, hidden, width]`.
        biases: of gate_up and of down, `[experts, outputs]`; None = none.
        clamped: see `swiglu`.
    """

    def __init__(
        self,
        gate_up: Tensor,
        down: Tensor,
        biases: tuple[Tensor, Tensor] | None = None,
        clamped: ClampedGate | None = None,
    ) -> None:
        self.gate_up = gate_up
        self.down = down
        self.biases = biases
        self.clamped = clamped

    def __call__(self, rows: Tensor, counts: Tensor) -> Tensor:
        ends = counts.cumsum(0, dtype=torch.int32)
        outer = F.grouped_mm(rows, self.gate_up.transpose(1, 2), offs=ends)
        if self.biases is None:
            return F.grouped_mm(swiglu(outer, self.clamped), self.down.transpose(1, 2), offs=ends)
        first, second = (b.repeat_interleave(counts, 0, output_size=rows.shape[0]) for b in self.biases)
        inner = swiglu(outer.add_(first), self.clamped)
        return F.grouped_mm(inner, self.down.transpose(1, 2), offs=ends).add_(second)


def make_experts(
    gate_up: Sequence[Linear], down: Sequence[Linear], clamped: ClampedGate | None = None
) -> ExpertCompute:
    """The form that suits the weights' device; all experts have biases, or none.

    Effects: grouped weights are a copy; the given ones may be freed.
    """
    plain = [product for product in (*gate_up, *down) if isinstance(product, PlainLinear)]
    alike = all(one.weight.is_cuda and one.weight.dtype == torch.bfloat16 for one in plain)
    if len(plain) < 2 * len(gate_up) or not alike:
        return LocalExperts(gate_up, down, clamped)
    first, second = plain[: len(gate_up)], plain[len(gate_up) :]
    weights = [torch.stack([one.weight for one in half]) for half in (first, second)]
    biases = [
        torch.stack([one.bias for one in half if one.bias is not None])
        for half in (first, second)
        if half[0].bias is not None
    ]
    return GroupedExperts(weights[0], weights[1], (biases[0], biases[1]) if biases else None, clamped)


class ExpertLayer:
    """The feed-forward half of a block with experts; the shared network processes every token.

    Args:
        bf16_results: experts' results are rounded to bfloat16 before they are weighted.
    """

    def __init__(
        self, gate: Gate, experts: ExpertCompute, num_experts: int, shared: Mlp | None, *, bf16_results: bool = False
    ) -> None:
        self.gate = gate
        self.bf16_results = bf16_results
        self.experts = experts
        self.num_experts = num_experts
        self.shared = shared

    def __call__(self, x: Tensor) -> Tensor:
        routing = self.gate(x)
        dispatched = dispatch(x, routing, self.num_experts)
        outputs = self.experts(dispatched.rows, dispatched.counts)
        if self.bf16_results:
            outputs = outputs.bfloat16().to(outputs.dtype)
        routed = combine(outputs, dispatched.places, routing.weights)
        return routed if self.shared is None else routed.add_(self.shared(x))
