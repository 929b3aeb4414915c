"""A device in the cost model: peaks, links, layout and calibrated efficiencies of one die.

"Die" is the smallest unit with a rank: half of an Ascend 910C, or one whole GPU. Rates are one direction, in bytes
per second; peaks are dense. Every number is read from a device file (TOML), which also cites its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hardware.cost.weight_format import Products
from hardware.errors import SpecError

# A number of a device file with where it comes from.

Status = Literal["published", "derived", "assumed", "fitted"]
STATUSES: tuple[Status, ...] = ("published", "derived", "assumed", "fitted")


@dataclass(frozen=True, slots=True)
class Constant:
    """One number.

    Attributes:
        value: in the unit that its key names.
        status: `published` = measured or stated in a source; `derived` = arithmetic on published numbers;
            `assumed` = chosen, with the reason as the source; `fitted` = found by calibration.
        source: place in the source, reason for the choice, or rows it was fitted to.
    """

    value: float
    status: Status
    source: str


# A device in the cost model: peaks, links, layout and calibrated efficiencies of one die.

DecodeOverlap = Literal["split-cores", "hidden-communication"]
PrefillAttention = Literal["sp-tp-sp", "data-parallel", "context-parallel"]


@dataclass(frozen=True, slots=True)
class Die:
    """Peaks and memory of one die.

    Attributes:
        cores: what streams can divide: cube cores, or streaming multiprocessors.
        fp8_flops_per_s: 0 = the die multiplies no FP8.
        vector_flops_per_s: element-wise operations in FP32.
    """

    per_npu: float
    cores: float
    bf16_flops_per_s: float
    int8_flops_per_s: float
    fp8_flops_per_s: float
    vector_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float

    def products_per_s(self, products: Products, name: str) -> float:
        """Peak of matrix products of one type.

        Args:
            name: of the device, for the message.
        Raises: SpecError if the die has none of that type.
        """
        peaks = {"int8": self.int8_flops_per_s, "fp8": self.fp8_flops_per_s, "bf16": self.bf16_flops_per_s}
        if not peaks[products]:
            raise SpecError(f"{name} multiplies no {products.upper()}: name other weights, e.g. w8a8")
        return peaks[products]


@dataclass(frozen=True, slots=True)
class Links:
    """Links of a die: the scale-up fabric (to other dies, to pooled memory), RDMA, the datacentre.

    Attributes:
        scale_up_dies: dies that the scale-up fabric joins: no tensor-parallel group is larger.
    """

    scale_up_dies: float
    peer_read_bytes_per_s: float
    peer_read_latency_s: float
    peer_write_bytes_per_s: float
    peer_write_latency_s: float
    pool_read_bytes_per_s: float
    pool_read_latency_s: float
    pool_write_bytes_per_s: float
    pool_write_latency_s: float
    rdma_bytes_per_s: float
    rdma_latency_s: float
    vpc_bytes_per_s: float
    vpc_latency_s: float


@dataclass(frozen=True, slots=True)
class Loading:
    """Rates at which one instance gets its weights."""

    storage_bytes_per_s: float
    pool_bytes_per_s: float
    peer_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Layout:
    """How the published systems place a model on this device.

    Attributes:
        redundant_share: extra copies of routed experts, as a share of their number.
        shared_die_share: share of a decode group's dies that hold only shared experts; 0 = every die has them.
        decode_overlap: two half batches, each on its part of the cores; or one after the other, with communication
            of one half behind the computation of the other.
        prefill_attention: sequence- and head-split over the instance, or each die its own prompts, or sequence-split
            with all heads of a token on its die.
        communication_cores: taken from computation while prefill sends.
    """

    redundant_share: float
    shared_die_share: float
    decode_overlap: DecodeOverlap
    prefill_attention: PrefillAttention
    communication_cores: float


@dataclass(frozen=True, slots=True)
class ExpertTable:
    """Measured dispatch and combine latencies by expert-parallel degree.

    Attributes:
        tokens: per rank.
        copies: destinations of each token.
    """

    tokens: float
    copies: float
    degrees: tuple[int, ...]
    dispatch_s: tuple[float, ...]
    combine_s: tuple[float, ...]
    dispatch_saturates: float
    combine_saturates: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Efficiencies and overheads, each in the unit that its name ends in; shares and factors have none.

    Attributes:
        gemm_utilisation: of the 8-bit peak, wide matrix products.
        core_utilisation: of the BF16 peak, decode core attention with drafted tokens (two query rows and more).
        core_utilisation_single: the same with one query row per head.
        core_memory_efficiency: of HBM rate, reading the KV cache.
        grouped_memory_efficiency: the same, of grouped attention's keys and values.
        gathered_memory_efficiency: the same, reading single rows that sparse attention chose.
        weight_memory_efficiency: of HBM rate, skinny matrix products that only read weights.
        packed_memory_efficiency: the same as `weight_memory_efficiency`, of weights with fewer than 8 bits, which are
            unpacked on their way.
        core_fp8_gain: core attention's rate with an FP8 cache over that with BF16; where FP8 is multiplied.
        vector_value_s: element-wise work of a kernel, for each value that it writes; see `kernels`.
        exchange_floor_s: dispatch or combine with zero tokens.
        far_exchange_s: least time of either in a group that is larger than the scale-up fabric.
        dispatch_wait_factor: on what a dispatch adds above its floor, because dies finish attention at different times.
        combine_wait_factor: the same of combine, beyond the wait for the die with the busiest experts, which is priced
            as that die's work.
        expert_spread: standard deviation of the popularity of expert copies after balancing, relative to its mean.
        kernel_start_s: start of one kernel, added to its work; see `kernels`.
        indexer_start_s: the same of one of the small kernels of sparse attention's indexer.
        kernel_floor_s: least time of a small kernel in a graph, where kernels are not fused; 0 = they are.
        handover_s: between the two streams, per layer.
        split_low / split_high: smallest and largest number of cores that the attention stream may have.
        step_start_s / sampling_s: per step, and per token of the die.
        draft_start_s: per draft pass, for which the device waits: sampling, the host, the next launch.
        prefill_core_utilisation: of the BF16 peak, prefill core attention.
        prefill_vector_s / prefill_hidden_vector_s: per token and layer on the main and on the hidden stream.
        own_prompts_factor: on `prefill_vector_s` where each die has prompts of its own, and expands their latents to
            keys and values of all heads.
        prefill_imbalance: routed matrix work of the busiest die against the mean, default expert placement.
        prefill_launch_s: per layer and half batch.
        bulk_exchange_bytes_per_s: dispatch and combine by bulk copies, per die.
        collective_bytes_per_s: all-gather, reduce-scatter and all-to-all, per die.
        prefill_fixed_s: per prefill step, outside of layers and LM head.
        small_gemm_tokens: rows at which a matrix product reaches half of `gemm_utilisation`.
        pool_load_bytes_per_s: effective rate at which one NPU loads cached prefixes.
        hbm_share: of HBM that an engine may use.
    """

    gemm_utilisation: float
    core_utilisation: float
    core_utilisation_single: float
    core_memory_efficiency: float
    grouped_memory_efficiency: float
    gathered_memory_efficiency: float
    weight_memory_efficiency: float
    packed_memory_efficiency: float
    core_fp8_gain: float
    vector_value_s: float
    exchange_floor_s: float
    far_exchange_s: float
    dispatch_wait_factor: float
    combine_wait_factor: float
    expert_spread: float
    kernel_start_s: float
    indexer_start_s: float
    kernel_floor_s: float
    handover_s: float
    split_low: float
    split_high: float
    step_start_s: float
    draft_start_s: float
    sampling_s: float
    prefill_core_utilisation: float
    prefill_vector_s: float
    prefill_hidden_vector_s: float
    own_prompts_factor: float
    prefill_imbalance: float
    prefill_launch_s: float
    bulk_exchange_bytes_per_s: float
    collective_bytes_per_s: float
    prefill_fixed_s: float
    small_gemm_tokens: float
    pool_load_bytes_per_s: float
    hbm_share: float


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """One device file.

    Attributes:
        title: for people.
        constants: every number with its source, by "section.key".
    """

    name: str
    title: str
    die: Die
    links: Links
    loading: Loading
    layout: Layout
    experts: ExpertTable
    calibration: Calibration
    constants: Mapping[str, Constant]
