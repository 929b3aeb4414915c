"""The gated feed-forward net: dense layers, shared experts, and the arithmetic of one expert."""

from torch import Tensor
from torch.nn import functional as F

from serving.model.linear import Linear


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of `[rows, 2 * width]`, gate in the first half."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


class Mlp:
    """`down(silu(gate(x)) * up(x))`, gate and up as one product."""

    __slots__ = ("down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x)))
