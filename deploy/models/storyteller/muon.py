"""Muon for the matrices, AdamW for the rest: learns about twice as much per token as AdamW alone.

Source: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). Matrices of one shape are
orthogonalised together as one batch, which matters for this model: 54 small expert matrices share each shape.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic coefficients of the source
NEWTON_SCHULZ_STEPS = 5


def orthogonalise(batch: Tensor) -> Tensor:
    """Nearest semi-orthogonal matrices of [n, rows, columns], approximately, in bfloat16."""
    x = batch.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, then an orthogonalised step; for 2-D weights of hidden layers only."""

    def __init__(self, params: list[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401
        """One update. Effects: changes parameters and momentum."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                self._step_shape(shape, params, group)

    def _step_shape(self, shape: torch.Size, params: list[Tensor], group: dict[str, Any]) -> None:
        """Nesterov momentum and an orthogonalised step for parameters of one shape; missing gradients are zero."""
        grads = []
        for p in params:
            buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
            grad = torch.zeros_like(p) if p.grad is None else p.grad
            buffer.lerp_(grad, 1 - group["momentum"])
            grads.append(grad.lerp(buffer, group["momentum"]))
        updates = orthogonalise(torch.stack(grads)).float()
        size = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
        for p, update in zip(params, updates, strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-size)


def make_optimizers(model: nn.Module, lr_muon: float, lr_adam: float) -> list[torch.optim.Optimizer]:
    """Muon for every hidden matrix; AdamW for embedding, router and norms. Only the embedding has weight decay."""
    matrices, routers, norms, embedding = [], [], [], []
    for name, p in model.named_parameters():
        if "embed_tokens" in name:
            embedding.append(p)
        elif name.endswith("gate.weight"):
            routers.append(p)
        elif p.ndim == 2:
            matrices.append(p)
        else:
            norms.append(p)
    adam = torch.optim.AdamW(
        [
            {"params": embedding, "lr": 3 * lr_adam, "weight_decay": 0.02},
            {"params": routers + norms, "weight_decay": 0.0},
        ],
        lr=lr_adam,
        betas=(0.9, 0.95),
        eps=1e-10,
    )
    return [Muon(matrices, lr_muon), adam]
