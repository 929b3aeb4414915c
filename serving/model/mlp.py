"""The gated feed-forward network: dense layers, shared experts, and the computation of one expert."""

from torch import Tensor
from torch.nn import functional as F

from serving.model.architecture import ClampedGate
from serving.model.linear import Linear


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
