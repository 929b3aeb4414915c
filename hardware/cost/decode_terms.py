"""Coefficients of a decode step: seconds per token, per cached token or per read of weights, on a whole die.

Each operator costs `max(compute, memory)`: compute grows with tokens and shrinks with the share of cores it has;
memory is the read of its weights or of the KV cache, which needs no cores to speak of.
"""

import math
from dataclasses import dataclass, replace

from hardware.cost.attention import BF16_BYTES, LatentAttentionSizes
from hardware.cost.device_model import Calibration, DeviceModel
from hardware.cost.exchange import (
    busiest_tokens,
    combine_line,
    dispatch_line,
    expert_copies,
    experts_read,
    has_shared_dies,
    largest_draw,
)
from hardware.cost.kernels import (
    INDEXER_STARTS,
    Kernel,
    attention_kernels,
    dense_kernels,
    expert_kernels,
    small,
    starts,
    values,
)
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.cost.weight_format import WeightFormat

# Coefficients of sparse attention's indexer, mean over a model's layers: seconds on a whole die.
#
# Its matrices are read and multiplied in BF16. Scores take matrix products, then ReLU, weights and the choice on vector
# cores; for them all cached keys are read. Chosen rows are scattered, so core attention reads them one by one.


@dataclass(frozen=True, slots=True)
class IndexerTerms:
    """`_t` = seconds per token, or per new and cached token; `_w` = seconds to read weights or a key once.

    Attributes:
        product_t / product_w: projections to queries, key and weights of heads.
        score_t / score_w / score_vector_t: scores and the choice.
        gathered_w: one chosen row of the cache, read on its own.
        start: starts of its kernels.
    """

    product_t: float
    product_w: float
    score_t: float
    score_w: float
    score_vector_t: float
    gathered_w: float
    start: float


def indexer_terms(device: DeviceModel, shape: ModelShape, utilisation: float) -> IndexerTerms | None:
    """Coefficients of a model's indexer on one device; None of a model without one.

    Args:
        utilisation: of the BF16 peak, by scores: that of core attention with one query row, whose products are as
            narrow; no value is published for them.
    Source: DeepSeek-V3.2-Exp report, equation 1; peaks and efficiencies from the device file.
    """
    indexer = shape.indexer
    if indexer is None:
        return None
    die, cal, weights = device.die, device.calibration, shape.indexer_weights
    share = indexer.layers / shape.layers
    scattered = die.hbm_bytes_per_s * cal.gathered_memory_efficiency
    return IndexerTerms(
        product_t=share * 2 * weights / (die.bf16_flops_per_s * cal.gemm_utilisation),
        product_w=share * weights * BF16_BYTES / (die.hbm_bytes_per_s * cal.weight_memory_efficiency),
        score_t=share * indexer.score_flops / (die.bf16_flops_per_s * utilisation),
        score_w=share * indexer.dim * BF16_BYTES / (die.hbm_bytes_per_s * cal.core_memory_efficiency),
        score_vector_t=share * indexer.score_vector_flops / die.vector_flops_per_s,
        gathered_w=shape.attention.attended_values * BF16_BYTES / scattered,
        start=share * INDEXER_STARTS * cal.indexer_start_s,
    )


# Coefficients of a decode step: seconds per token, per cached token or per read of weights, on a whole die.


@dataclass(frozen=True, slots=True)
class DecodeTerms:
    """Terms that do not depend on the load. `_t` = seconds per token, `_w` = seconds to read weights once.

    Attributes:
        attention_v / expert_v / dense_v: element-wise work of one token; `_start`: starts of the kernels, an indexer's
            included. `_floor`: least time of an operator; those of `prolog_w`, `output_w` and `dense_w` are in them.
    """

    prolog_t: float
    prolog_w: float
    output_t: float
    output_w: float
    core_t: float
    core_single_t: float
    core_w: float
    dense_t: float
    dense_w: float
    expert_t: float
    expert_w: float
    merge_t: float
    merge_w: float
    head_t: float
    head_w: float
    attention_v: float = 0.0
    expert_v: float = 0.0
    dense_v: float = 0.0
    attention_start: float = 0.0
    expert_start: float = 0.0
    dense_start: float = 0.0
    core_floor: float = 0.0
    norm_floor: float = 0.0
    expert_floor: float = 0.0
    gate_floor: float = 0.0
    indexer: IndexerTerms | None = None


def read_efficiency(calibration: Calibration, weights: WeightFormat) -> float:
    """Share of the HBM rate at which skinny products read weights of a format."""
    return calibration.weight_memory_efficiency if weights.bits >= 8 else calibration.packed_memory_efficiency


def decode_terms(device: DeviceModel, shape: ModelShape, parallelism: Parallelism = WHOLE) -> DecodeTerms:
    """Coefficients of one model on one device.

    Where a group of dies shares its sequences, tokens are the group's, and so is the cache; a die has its heads' part
    of the products, but all down-projections of latent attention, all of the indexer, and all of the latents.
    A split LM head has more rows for fewer columns: its products stay, its reads shrink.

    `core_t` is per query token and cached token, `core_w` per cached token of one sequence.
    Weights that are unpacked are multiplied in the type of their products, and read as they are stored; kernels of each
    type are taken to reach the share of its peak that those of 8 bits do.
    Source: shapes and formats from the model; peaks and efficiencies from the device file.
    Raises: SpecError for a type of products that the device does not multiply.
    """
    die, cal = device.die, device.calibration
    formats = shape.formats
    gemm, gemm_e = (
        die.products_per_s(one.products, device.name) * cal.gemm_utilisation
        for one in (formats.attention, formats.experts)
    )
    weight, weight_e = formats.attention.bytes, formats.experts.bytes
    gemm16 = die.bf16_flops_per_s * cal.gemm_utilisation
    skinny, skinny_e = (die.hbm_bytes_per_s * read_efficiency(cal, one) for one in (formats.attention, formats.experts))
    merge = 2 * shape.hidden * shape.hidden
    attention = shape.attention
    tp = parallelism.attention_tp
    prolog = attention.die_prolog_weights(shape.hidden, tp)
    output, dense, head = shape.output_weights / tp, shape.dense_weights / tp, shape.head_weights / parallelism.head_tp
    expert = shape.expert_weights / parallelism.expert_tp
    into, out_of = attention.key_up_weights / tp, attention.value_up_weights / tp
    core, cached = attention.decode_core_flops / tp, attention.attended_bytes(int8=formats.one_byte_kv)
    latent = isinstance(attention, LatentAttentionSizes)
    cached_rate = cal.core_memory_efficiency if latent else cal.grouped_memory_efficiency
    core_rate = die.bf16_flops_per_s * (cal.core_fp8_gain if formats.kv == "fp8" else 1.0)
    terms = DecodeTerms(
        prolog_t=2 * prolog / gemm + 2 * into / gemm16,
        prolog_w=(prolog * weight + into * BF16_BYTES) / skinny,
        output_t=2 * output / gemm + 2 * out_of / gemm16,
        output_w=(output * weight + out_of * BF16_BYTES) / skinny,
        core_t=core / (core_rate * cal.core_utilisation),
        core_single_t=core / (core_rate * cal.core_utilisation_single),
        core_w=cached / attention.cache_parts(tp) / (die.hbm_bytes_per_s * cached_rate),
        dense_t=2 * dense / gemm,
        dense_w=dense * weight / skinny,
        expert_t=2 * expert / gemm_e,
        expert_w=expert * weight_e / skinny_e,
        merge_t=2 * merge / gemm,
        merge_w=merge * weight / skinny,
        head_t=2 * shape.head_weights / gemm,
        head_w=head * weight / skinny,
        indexer=indexer_terms(device, shape, cal.core_utilisation_single),
    )
    return _with_kernels(terms, cal, shape)


def _with_kernels(terms: DecodeTerms, cal: Calibration, shape: ModelShape) -> DecodeTerms:
    """Starts, element-wise work and least times of kernels, added to the terms of products and reads."""
    of_attention, of_experts, of_dense = attention_kernels(shape), expert_kernels(shape), dense_kernels(shape)

    def floor(kernels: tuple[Kernel, ...], *names: str) -> float:
        return small(kernels, *names) * cal.kernel_floor_s

    return replace(
        terms,
        prolog_w=max(terms.prolog_w, floor(of_attention, "prolog")),
        output_w=max(terms.output_w, floor(of_attention, "value", "output")),
        dense_w=max(terms.dense_w, floor(of_dense, "products")),
        attention_v=values(of_attention) * cal.vector_value_s,
        expert_v=values(of_experts) * cal.vector_value_s,
        dense_v=values(of_dense) * cal.vector_value_s,
        attention_start=starts(of_attention) * cal.kernel_start_s + (terms.indexer.start if terms.indexer else 0.0),
        expert_start=starts(of_experts) * cal.kernel_start_s,
        dense_start=starts(of_dense) * cal.kernel_start_s,
        core_floor=floor(of_attention, "core"),
        norm_floor=floor(of_attention, "norm"),
        expert_floor=floor(of_experts, "products"),
        gate_floor=floor(of_experts, "gate"),
    )


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """Terms that the size of the expert-parallel group decides.

    Attributes:
        least: least time of dispatch or combine [s].
        dispatch_t / combine_t: seconds per token above the floor, waits included.
        routed_visits: of a routed die, for each token that a die has on average.
        shared_visits: the same of a die with shared experts only; 0 when every die has them.
        everywhere: shared experts that every die has.
        slots: copies of routed experts on a routed die.
        routed_dies: dies with routed experts.
        visit_chance: that a token visits one copy.
        draw / variance: of the busiest die; see `exchange`.
        expert_tp: dies that share each of their experts: together they are one die of all the above; 0 = no experts.
    """

    least: float = 0.0
    dispatch_t: float = 0.0
    combine_t: float = 0.0
    routed_visits: float = 0.0
    shared_visits: float = 0.0
    everywhere: int = 0
    slots: int = 0
    routed_dies: float = 0.0
    visit_chance: float = 0.0
    draw: float = 0.0
    variance: float = 0.0
    expert_tp: int = 0

    @property
    def experts(self) -> int:
        """Copies that a die holds, shared experts included."""
        return self.slots + self.everywhere

    def busiest(self, tokens: float, imbalance: float | None = None) -> float:
        """Visits on the busiest die.

        Args:
            tokens: of a die, mean over all dies.
            imbalance: see `DecodeLoad`; where chance alone makes some die busier than that, chance counts.
        """
        tokens *= self.expert_tp
        mean = self.routed_visits * tokens
        if imbalance is None:
            routed = busiest_tokens(mean, self.draw, self.variance)
        else:
            routed = max(imbalance * mean, busiest_tokens(mean, self.draw, 0.0))
        routed += self.everywhere * tokens
        shared = self.shared_visits * tokens
        return routed if routed > shared else shared

    def read(self, tokens: float) -> float:
        """Experts whose weights the die that reads most of them reads.

        At least one. A die without tokens of its own reads no shared expert.

        Args:
            tokens: of the whole group.
        """
        if not self.slots:
            return 0.0
        missed = (1 - self.visit_chance) ** tokens if self.visit_chance < 1 else 0.0
        shared = self.everywhere * min(1.0, tokens / self.routed_dies)
        return max(experts_read(self.slots, self.routed_dies, missed) + shared, 1.0, float(self.everywhere))


def group_terms(device: DeviceModel, shape: ModelShape, dies: int, parallelism: Parallelism = WHOLE) -> GroupTerms:
    """Terms of an expert-parallel group of some dies; all 0 for a dense model, which has no expert exchange.

    Where dies share experts, each copy of a token is sent to all of them, and all results are returned and added;
    tokens for shared experts that every die has a part of go to the others as well. Where there are fewer copies than
    dies for them, so many dies have one, and the others none.
    """
    if not shape.experts:
        return GroupTerms()
    cal, layout, table = device.calibration, device.layout, device.experts
    expert_tp = parallelism.expert_tp
    holders = dies // expert_tp
    own_dies = has_shared_dies(layout, shape, holders)
    copies = (shape.active_experts + (shape.shared_experts if own_dies else 0)) * expert_tp
    copies += 0 if own_dies else shape.shared_experts * (expert_tp - 1)
    scale = copies / (table.tokens * table.copies)
    scale_d = scale * cal.dispatch_wait_factor * shape.dispatch_bytes / MEASURED_DISPATCH_BYTES
    scale_c = scale * cal.combine_wait_factor * shape.combine_bytes / MEASURED_COMBINE_BYTES
    routed_dies = holders * (1 - layout.shared_die_share) if own_dies else float(holders)
    redundant = parallelism.redundant_on(routed_dies)
    copies_held = expert_copies(layout, shape, holders, redundant)
    if redundant is not None:
        routed_dies = min(routed_dies, copies_held)
    slots = max(1, math.ceil(copies_held / routed_dies - 1e-9))
    floor = cal.exchange_floor_s
    return GroupTerms(
        least=cal.far_exchange_s if dies > device.links.scale_up_dies else 0.0,
        dispatch_t=max(0.0, dispatch_line(table).seconds(dies) - floor) * scale_d,
        combine_t=max(0.0, combine_line(table).seconds(dies) - floor) * scale_c,
        routed_visits=shape.active_experts * holders / routed_dies,
        shared_visits=shape.shared_experts / layout.shared_die_share if own_dies else 0.0,
        everywhere=0 if own_dies else shape.shared_experts,
        slots=slots,
        routed_dies=routed_dies,
        visit_chance=shape.active_experts / copies_held,
        draw=largest_draw(routed_dies),
        variance=cal.expert_spread**2 / slots,
        expert_tp=expert_tp,
    )


MEASURED_DISPATCH_BYTES = 7_680
MEASURED_COMBINE_BYTES = 14_336
"""Messages that the tables of every device were measured with: hidden width 7,168. Source: DeepEP, CANN."""
