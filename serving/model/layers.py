"""The smallest layers: RMS normalisation and the gated feed-forward net."""

import torch
from torch import Tensor
from torch.nn import functional as F

from serving.model.architecture import ClampedGate
from serving.model.linear import Linear

# Root-mean-square normalisation.


class RmsNorm:
    """`x / rms(x) * weight` over the last axis, the quotient in float32.

    Written in steps, since on a CPU torch's own `rms_norm` takes four times as long on long prompts.
    """

    __slots__ = ("eps", "size", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.size = weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
        scale = square.div_(self.size).add_(self.eps).rsqrt_()
        return (wide * scale).to(x.dtype).mul_(self.weight)


# The gated feed-forward network: dense layers, shared experts, and the computation of one expert.


def swiglu(gate_up: Tensor, clamped: ClampedGate | None = None) -> Tensor:
    """`silu(gate) * up` of `[rows, 2 * width]`, gate in the first half; uses the clamped gate if given."""
    gate, up = gate_up.chunk(2, -1)
    if clamped is None:
        return F.silu(gate).mul_(up)
    gate, up = gate.clamp(max=clamped.limit), up.clamp(-clamped.limit, clamped.limit)
    return (gate * clamped.alpha).sigmoid_().mul_(gate).mul_(up.add_(1))


class Mlp:
    """`down(silu(gate(x)) * up(x))`, gate and up as one product.

    Args:
        clamped: see `swiglu`.
    """

    __slots__ = ("clamped", "down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear, clamped: ClampedGate | None = None) -> None:
        self.gate_up = gate_up
        self.down = down
        self.clamped = clamped

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x), self.clamped))
