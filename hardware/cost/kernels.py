"""Kernels of one layer of a decode step: how many are started, and the element-wise work of each.

Matrix products and core attention are priced by their operations and bytes (`decode_terms`). What is left is counted
here: each kernel takes `kernel_start_s` to start, and its element-wise work takes time for each value that it writes.

    attention   norm | prolog | core | value | output         experts   gate | dispatch | products | combine
    indexer     queries, key, weights of heads, their rotation, Hadamard products, quantisation, cache, scores, choice

Engines that fuse less run several small kernels for each of these, and each of them takes `kernel_floor_s` at least:
with few tokens that is all of a step's time. Counts of values are of one token in one layer, so that models of other
widths, heads and experts differ in them.
"""

from typing import NamedTuple

from hardware.cost.attention import LatentAttentionSizes
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape


class Kernel(NamedTuple):
    """One kernel of a layer.

    Attributes:
        starts: launches that are not fused with those of other kernels.
        small: kernels in its place without fusion. Source: SGLang's `deepseek_v2` and `qwen3_moe` in FP8: quantisation
            of inputs, products, norms, rotation, cache, absorption.
        values: written by its element-wise part, for one token.
    """

    name: str
    starts: int
    small: int
    values: float


INDEXER_STARTS = 17
"""Launches that sparse attention adds to a layer.

Three projections, normalisation, two rotations and their concatenations (4), two Hadamard products, two quantisations,
two writes to the cache, scores with their choice, and the gathering core attention's own preparation.
Source: public CANN recipe of DeepSeek-V3.2 (cann-recipes-infer, `indexer.py`), decode without a fused indexer prolog.
"""


def attention_kernels(shape: ModelShape) -> tuple[Kernel, ...]:
    """Kernels of attention, without an indexer's.

    Source: CloudMatrix384 paper 4.2.2: MLAProlog is one kernel, core attention another; absorption follows it.
    """
    sizes, hidden = shape.attention, shape.hidden
    if isinstance(sizes, LatentAttentionSizes):
        latent = sizes.kv_rank + sizes.rope_dim
        prolog = sizes.q_rank + latent + sizes.heads * (sizes.nope_dim + sizes.rope_dim + latent)
        value = sizes.heads * (sizes.kv_rank + sizes.v_dim)
        small = 10, 2
    else:
        prolog = 2 * (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        value = sizes.result_values
        small = 5, 0
    return (
        Kernel("norm", 1, 2, 2 * hidden),
        Kernel("prolog", 1, small[0], prolog),
        Kernel("core", 1, 2, 0),
        Kernel("value", 1, small[1], value),
        Kernel("output", 1, 2, 0),
    )


def expert_kernels(shape: ModelShape) -> tuple[Kernel, ...]:
    """Kernels of an expert layer; starts of dispatch and combine are in their own times (`exchange_floor_s`)."""
    hidden, active = shape.hidden, shape.active_experts
    visited = active + shape.shared_experts
    return (
        Kernel("gate", 1, 4, 2 * hidden + shape.experts),
        Kernel("dispatch", 0, 0, (1 + active) * hidden),
        Kernel("products", 2, 4 + 4 * bool(shape.shared_experts), 3 * visited * shape.expert_width),
        Kernel("combine", 0, 0, visited * hidden),
    )


def dense_kernels(shape: ModelShape) -> tuple[Kernel, ...]:
    """Kernels of an ordinary feed-forward."""
    return Kernel("norm", 1, 2, 2 * shape.hidden), Kernel("products", 2, 4, 3 * shape.dense_width)


def small(kernels: tuple[Kernel, ...], *names: str) -> int:
    """Small kernels in place of some."""
    return sum(kernel.small for kernel in kernels if kernel.name in names)


def starts(kernels: tuple[Kernel, ...]) -> int:
    """All launches."""
    return sum(kernel.starts for kernel in kernels)


def values(kernels: tuple[Kernel, ...]) -> float:
    """Values that all of them write for one token."""
    return sum(kernel.values for kernel in kernels)


_R1_VALUES = values(attention_kernels(DEEPSEEK_R1)) + values(expert_kernels(DEEPSEEK_R1))


def vector_share(shape: ModelShape, *, dense: bool = False) -> float:
    """Element-wise work of a prompt's token in one layer, relative to an expert layer of DeepSeek-R1."""
    feed = dense_kernels(shape) if dense else expert_kernels(shape)
    return (values(attention_kernels(shape)) + values(feed)) / _R1_VALUES
