"""Duration of one prefill step.

The published scheme on the Ascend: the instance's dies split the packed prompts by sequence, gather the compressed
latents, split core attention by heads, exchange back, and compute experts where they live (SP-TP-SP, expert
parallel). Grouped attention has no latents: cache rows are gathered, queries go to the dies of their heads. With two
half batches, dispatch and combine (bulk copies) and their vector work overlap with the matrix products of the other
half. On other devices each die has its own prompts, and sending takes some of its cores.

Two more layouts are available. Context parallel: each die has all heads of its part of the sequence, and only cache
rows are gathered; latents must then be expanded by each die for all tokens, or weights absorbed, whichever is faster.
Tensor parallel: the dies of a group share prompts, heads and dense feed-forwards; see `collectives`.

Sparse attention has the faster of two forms: all tokens in plain form, those that were not chosen masked; or the
chosen ones with absorbed weights, as decode has it. Both exchange what dense attention does, and the indexer's keys.
Source: DeepSeek-V3.2-Exp report, sections 1 and 3: masked in short prompts.
"""

import math
from typing import NamedTuple

from hardware.cost.attention import BF16_BYTES, LatentAttentionSizes
from hardware.cost.decode_terms import indexer_terms, read_efficiency
from hardware.cost.device_model import DeviceModel
from hardware.cost.exchange import NEVER, REDUNDANT_FROM, collectives, expert_copies, experts_read
from hardware.cost.kernels import vector_share
from hardware.cost.loads import PrefillLoad
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import WHOLE, Parallelism, die_attention_weights
from hardware.units import Seconds


class PrefillLayer(NamedTuple):
    """One layer's operators for the whole batch on one die, in seconds."""

    products: float
    core: float
    experts: float
    gather: float
    exchange_heads: float
    vector: float
    launch: float
    weights: float
    exchange: float
    hidden_vector: float
    indexer: float = 0.0
    collective: float = 0.0

    @property
    def main(self) -> float:
        """The stream with the matrix products; never faster than its weights can be read."""
        products, core, experts, gather, exchange_heads, vector, launch, weights, _, _, indexer, collective = self
        work = max(products + experts, weights) + core + gather + exchange_heads + vector + launch + indexer
        return work + collective

    @property
    def hidden(self) -> float:
        """The overlappable stream."""
        return self.exchange + self.hidden_vector


class PrefillStep:
    """Prefill steps of one model on one device."""

    def __init__(self, device: DeviceModel, shape: ModelShape, parallelism: Parallelism = WHOLE) -> None:
        self.device = device
        self.shape = shape
        self.parallelism = parallelism
        die, cal = device.die, device.calibration
        formats = shape.formats
        self._weight, self._expert_weight = formats.attention.bytes, formats.experts.bytes
        self._gemm, self._expert_gemm = (
            die.products_per_s(one.products, device.name) * cal.gemm_utilisation
            for one in (formats.attention, formats.experts)
        )
        core_rate = die.bf16_flops_per_s * cal.prefill_core_utilisation
        self._core = shape.attention.prefill_core_flops / core_rate
        self._chosen_core = shape.attention.decode_core_flops / core_rate
        self._reach = shape.attention.reach(shape.layers)
        self._indexer = indexer_terms(device, shape, cal.prefill_core_utilisation)
        self._skinny, self._expert_skinny = (
            die.hbm_bytes_per_s * read_efficiency(cal, one) for one in (formats.attention, formats.experts)
        )
        layout, tp = parallelism.prefill_layout(device), parallelism.attention_tp
        self._tp = tp
        self._split = layout != "data-parallel"
        self._expert_tp = parallelism.expert_tp
        self._own_prompts = tp > 1 or parallelism.prefill_attention == "data-parallel"
        self._by_context = layout == "context-parallel"
        self._between = collectives(device, shape, parallelism)
        self._slow = die.cores / (die.cores - device.layout.communication_cores)
        attention = shape.attention
        gathered = attention.cached_values if self._by_context else attention.gathered_values
        self._gathered_bytes = gathered * BF16_BYTES
        self._heads_bytes = 0 if self._by_context else attention.exchanged_values * BF16_BYTES
        self._absorbed_weights = shape.absorbed_weights
        # What a die has of the weights, and what it multiplies for each of its own tokens.
        self._attention_weights = die_attention_weights(shape, tp)
        self._own_weights = self._attention_weights * tp
        self._dense_weights = shape.dense_weights
        self._expert_weights = shape.expert_weights
        messages = shape.active_experts * parallelism.expert_tp
        self._message_bytes = messages * (shape.dispatch_bytes + shape.combine_bytes)
        # The rest is computed several times a step.
        redundant = parallelism.redundant_experts
        self._copies_from = REDUNDANT_FROM if redundant is None else 0
        self._all_copies = expert_copies(device.layout, shape, REDUNDANT_FROM, redundant)
        self._missed = 1 - shape.active_experts / self._all_copies if shape.experts else 1.0
        self._few_tokens = math.log(NEVER) / math.log(self._missed) if 0 < self._missed < 1 else 0.0
        self._moe_layers, self._dense_layers = shape.moe_layers, shape.dense_layers
        self._active_experts = shape.active_experts
        self._shared_experts = shape.shared_experts
        self._small = cal.small_gemm_tokens
        self._imbalance = cal.prefill_imbalance
        self._collective = cal.collective_bytes_per_s
        self._bulk = cal.bulk_exchange_bytes_per_s
        latent = isinstance(shape.attention, LatentAttentionSizes)
        vector_s = cal.prefill_vector_s * (cal.own_prompts_factor if latent and not self._split else 1.0)
        wide, narrow = vector_share(shape), vector_share(shape, dense=True)
        self._vector_s = tuple(share * (vector_s - cal.prefill_hidden_vector_s) for share in (wide, narrow))
        self._hidden_vector_s = tuple(share * cal.prefill_hidden_vector_s for share in (wide, narrow))
        self._launch_s = cal.prefill_launch_s
        self._indexer_start_s = self._indexer.start if self._indexer else 0.0

    def layer(self, load: PrefillLoad, *, halves: int, dense: bool = False) -> PrefillLayer:
        """Operators of one layer.

        Args:
            halves: 2 = two half batches: weights are read and kernels started twice.
            dense: one of the layers with an ordinary feed-forward.
        """
        dies, small, gemm = load.dies, self._small, self._gemm
        n = load.tokens / dies
        away = (dies - 1) / dies
        # Of the fullest die, or of a die of the fullest group; experts get the tokens of all dies evenly.
        full = max(n, load.largest / self._tp) if self._own_prompts else n
        if dense:
            slow, feed = 1.0, float(self._dense_weights)
            feed_read, feed_gemm = feed / self._tp * self._weight / self._skinny, gemm
        else:
            slow = self._slow if halves > 1 else 1.0
            shared_by = self._expert_tp
            holders = dies / shared_by
            held = (self._all_copies if holders >= self._copies_from else self.shape.experts) / dies
            rows = n * self._active_experts / held / halves
            imbalance = self._imbalance if load.imbalance is None else load.imbalance
            imbalance = imbalance if holders > 1 else 1.0
            active = self._active_experts * imbalance * (1 + small / max(rows, 1.0)) + self._shared_experts
            feed = self._expert_weights * active
            if load.tokens < self._few_tokens * halves:
                visited = experts_read(math.ceil(held * shared_by), holders, self._missed ** (load.tokens / halves))
                held = min(held, visited / shared_by)
            kept = held + self._shared_experts / shared_by
            feed_read = self._expert_weights * kept * self._expert_weight / self._expert_skinny
            feed_gemm = self._expert_gemm
        own = 1 + small / max(full * self._tp / halves, 1.0)
        weights = (self._attention_weights * self._weight / self._skinny + feed_read) * halves
        products = 2 * self._own_weights * full * own / gemm * slow
        core = load.attended_tokens / dies * self._core * slow
        indexer = 0.0
        if self._reach.limit is not None:
            core, indexer = self._limited(load, n, halves)
            core, indexer = core * slow, indexer * slow
        if self._by_context and self._indexer is None:
            core = self._expanded(load, core, n)
        if self._own_prompts and full > n > 0:
            core, indexer = core * full / n, indexer * full / n
        experts = 2 * feed * (full if dense else n) / feed_gemm * slow
        gather = (dies - 1) * n * self._gathered_bytes / self._collective if self._split else 0.0
        heads = n * self._heads_bytes * away / self._collective if self._split else 0.0
        vector = self._vector_s[dense] * full
        launch = (self._launch_s + self._indexer_start_s) * halves
        exchange = 0.0 if dense else full * self._message_bytes * away / self._bulk
        hidden = self._hidden_vector_s[dense] * full
        between = 0.0
        if self._tp > 1:
            between = (2 if dense else 1) * (self._between.pair_s * halves + self._between.pair_t * full * self._tp)
        # By position: by name this would take as long as all of the above.
        return PrefillLayer(
            products, core, experts, gather, heads, vector, launch, weights, exchange, hidden, indexer, between
        )

    def _expanded(self, load: PrefillLoad, core: float, n: float) -> float:
        """Core attention of a die that has all heads: latents of other dies' tokens expanded, or weights absorbed."""
        elsewhere = 2 * self._absorbed_weights * (load.tokens - n) / self._gemm
        return min(core + elsewhere, core * self._chosen_core / self._core)

    def _limited(self, load: PrefillLoad, n: float, halves: int) -> tuple[float, float]:
        """Core attention and indexer of one layer on one die where core attention does not read whole contexts."""
        attended = load.attended_tokens / load.dies
        read = self._reach.prompt_tokens(load.attended_tokens / max(load.tokens, 1.0), load.first) * n
        index = self._indexer
        if index is None:
            return read * self._core, 0.0
        products = max(index.product_t * n * self._tp, index.product_w * halves)
        scores = (index.score_t + index.score_vector_t) * attended * self._tp
        return min(attended * self._core, read * self._chosen_core), products + scores

    def layer_s(self, load: PrefillLoad, *, microbatch: bool, dense: bool = False) -> float:
        """One layer's duration."""
        layer = self.layer(load, halves=2 if microbatch else 1, dense=dense)
        return max(layer.main, layer.hidden) if microbatch else layer.main + layer.hidden

    def uses_microbatch(self, load: PrefillLoad) -> bool:
        """Two half batches where they help: short batches lose more by reading weights twice."""
        if not self._moe_layers:
            return self.dense_halves(load) == 2
        return load.microbatch and self.layer_s(load, microbatch=True) < self.layer_s(load, microbatch=False)

    def dense_halves(self, load: PrefillLoad) -> int:
        """Half batches of the dense layers, which have no exchange to hide."""
        halved, whole = (self.layer_s(load, microbatch=on, dense=True) for on in (True, False))
        return 2 if load.microbatch and halved < whole else 1

    def outside_s(self, load: PrefillLoad) -> float:
        """LM head for the prompts' last tokens, and the step's fixed part."""
        head = self.shape.head_weights / self.parallelism.head_tp * self._weight / self._skinny + self._between.head_s
        return head + self.device.calibration.prefill_fixed_s

    def seconds(self, load: PrefillLoad) -> Seconds:
        """Duration of one step.

        Args:
            load: of the whole instance.
        Returns: elapsed time [s].
        Source: CloudMatrix384 paper 4.3.1, 4.3.2; efficiencies from the device file.
        """
        best, dense = self._best_s(load, dense=False), self._best_s(load, dense=True)
        return Seconds(self._moe_layers * best + self._dense_layers * dense + self.outside_s(load))

    def _best_s(self, load: PrefillLoad, *, dense: bool) -> float:
        """One layer of a kind, with half batches if that is allowed and faster; 0 if the model has none."""
        if not (self._dense_layers if dense else self._moe_layers):
            return 0.0
        whole = self.layer_s(load, microbatch=False, dense=dense)
        return min(whole, self.layer_s(load, microbatch=True, dense=dense)) if load.microbatch else whole
