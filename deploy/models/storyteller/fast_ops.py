"""Three optimizations that make training on a CPU about twice as fast, with the same mathematics.

Explicit attention (at these sizes faster than the fused CPU kernel), cross-entropy that never holds all the logits,
and a memory allocator that keeps freed memory instead of requesting zeroed pages from the kernel in every step.
"""

import ctypes
from typing import Any

import torch
from torch import Tensor

CE_CHUNK = 1024


def keep_freed_memory() -> None:
    """Configure glibc to serve large blocks from the heap and to keep freed memory; does nothing without glibc.

    Source: measured, attention and loss steps 2 to 4 times faster without the page faults.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((-4, 0), (-1, 2**31 - 1), (-2, 256 * 2**20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
            mallopt(option, value)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d) + mask) v.

    Args:
        query, key: [batch, length, heads, d].
        value: [batch, length, heads, d_v].
        mask: [length, length], 0 or -inf.
    Returns: [batch, length, heads * d_v].
    """
    batch, length, heads, d = query.shape
    q, k, v = (x.transpose(1, 2).reshape(batch * heads, length, x.shape[-1]) for x in (query, key, value))
    scores = torch.baddbmm(mask, q * d**-0.5, k.transpose(1, 2))
    out = torch.bmm(scores.softmax(-1), v)
    return out.view(batch, heads, length, -1).transpose(1, 2).reshape(batch, length, -1)


class LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of `hidden @ head.T` by chunks, with gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, low: torch.dtype) -> Tensor:  # noqa: ANN401
        """hidden [n, d], head [vocabulary, d], targets [n] int64; `low` is the dtype of the products."""
        n = hidden.shape[0]
        states, weight = hidden.to(low), head.to(low)
        d_hidden, d_head = torch.empty_like(states), torch.zeros_like(head)
        total = torch.zeros(())
        for start in range(0, n, CE_CHUNK):
            rows, wanted = states[start : start + CE_CHUNK], targets[start : start + CE_CHUNK, None]
            p = torch.softmax(rows @ weight.T, -1, dtype=torch.float32)
            total -= (p.gather(1, wanted) + 1e-30).log().sum()
            grad = p.scatter_add_(1, wanted, torch.full(wanted.shape, -1.0)).to(low)
            d_hidden[start : start + CE_CHUNK] = grad @ weight
            d_head += grad.T @ rows
        ctx.save_for_backward(d_hidden / n, d_head / n)
        ctx.hidden_dtype = hidden.dtype
        return total / n

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401
        """Scale the stored gradients."""
        d_hidden, d_head = ctx.saved_tensors
        return (d_hidden * grad).to(ctx.hidden_dtype), d_head * grad, None, None


class Permute(torch.autograd.Function):
    """Rows of `x` in the order `order`; the backward pass gathers with the inverse, since indexing would scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:  # noqa: ANN401
        """x [n, d]; order and inverse [n] int64, permutations of each other."""
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """The inverse permutation of the gradient's rows."""
        (inverse,) = ctx.saved_tensors
        return grad[inverse], None, None
