"""Duration of one decode step, fast: optimised for the millions of calls in a simulation.

One layer has two streams. Attention: prolog, core attention, output projection. Experts: dispatch, expert
products, combine. With two half batches the streams run side by side, each half in one of them: on the Ascend each
stream has part of the cores, and the best part is searched; on other devices computation is serial and only
communication is overlapped. A step is all layers, the MTP modules (each one more layer), LM heads and sampling. A dense
model has a feed-forward in place of the expert stream and no half batches: there is no exchange that they could hide.
Core attention reads the context as far as the model's attention reaches; sparse attention's indexer scores all of it.

Where groups of dies share their sequences, attention has the tokens of a group, and all else a die's share of them.
"""

from typing import NamedTuple

from hardware.cost.decode_terms import DecodeTerms, GroupTerms, decode_terms, group_terms
from hardware.cost.device_model import DeviceModel
from hardware.cost.exchange import Collectives, collectives
from hardware.cost.loads import DecodeLoad
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.units import Seconds


class HalfBatch(NamedTuple):
    """Operators of one half batch (or of the whole, without halves), on a whole die, in seconds.

    Attributes:
        prolog_c / output_c / core_c / expert_c / dense_c: compute; `_w`: memory.
        attention_vector / expert_vector / dense_vector: element-wise work.
        exchange: dispatch and combine.
        collective: of hidden rows within a group of dies; 0 where each die has sequences of its own.
        index_c / score_c / score_w / score_vector: sparse attention's indexer; all 0 without one.
    """

    prolog_c: float
    core_c: float
    core_w: float
    output_c: float
    attention_vector: float
    exchange: float
    expert_c: float
    expert_w: float
    expert_vector: float
    dense_c: float
    dense_vector: float
    collective: float = 0.0
    index_c: float = 0.0
    score_c: float = 0.0
    score_w: float = 0.0
    score_vector: float = 0.0


class DecodeStep:
    """Decode steps of one model on one device. Keeps what does not depend on the load."""

    def __init__(self, device: DeviceModel, shape: ModelShape, parallelism: Parallelism = WHOLE) -> None:
        self.device = device
        self.shape = shape
        self.parallelism = parallelism
        self.terms: DecodeTerms = decode_terms(device, shape, parallelism)
        self.collectives: Collectives = collectives(device, shape, parallelism)
        self._tp = parallelism.attention_tp
        self._groups: dict[int, GroupTerms] = {}
        self.drafter: DecodeStep | None = None
        if shape.drafter is not None:
            division = Parallelism(parallelism.attention_tp, parallelism.head_tp)
            self.drafter = DecodeStep(device, shape.drafter, division)
        self._floored = device.calibration.kernel_floor_s > 0 or device.calibration.far_exchange_s > 0
        self._reach = shape.attention.reach(shape.layers)
        self._exchanges = shape.experts > 0
        self._moe_layers, self._dense_layers = shape.moe_layers, shape.dense_layers
        cal, cores = device.calibration, device.die.cores
        self._split = device.layout.decode_overlap == "split-cores"
        self._shares = tuple(n / cores for n in range(round(cal.split_low), round(cal.split_high) + 1))

    def group(self, dies: int) -> GroupTerms:
        """Terms of a group of that many dies, kept.

        Effects: remembers them.
        """
        terms = self._groups.get(dies)
        if terms is None:
            terms = self._groups[dies] = group_terms(self.device, self.shape, dies, self.parallelism)
        return terms

    def uses_microbatch(self, load: DecodeLoad) -> bool:
        """Whether this step runs as two half batches: from the load, else where they are faster.

        Never in a dense model.
        """
        if not self._exchanges:
            return False
        if load.microbatch is not None:
            return load.microbatch
        return self._all_layers_s(load, microbatch=True) < self._all_layers_s(load, microbatch=False)

    def read_tokens(self, load: DecodeLoad) -> float:
        """Cached tokens of the fullest die that core attention of a layer reads, mean over layers."""
        if self._reach.limit is None or not load.requests:
            return load.context_tokens
        return self._reach.tokens(load.context_tokens / load.requests) * load.requests

    def own(self, tokens: float) -> float:
        """Tokens of the fullest die of a group that has some tokens: its share of them, but whole ones."""
        return tokens if self._tp == 1 else max(tokens / self._tp, min(tokens, 1.0))

    def half_batch(self, load: DecodeLoad, halves: int) -> HalfBatch:
        """Operators of one of `halves` equal parts of the batch."""
        c, cal, group = self.terms, self.device.calibration, self.group(load.dies)
        rows = 1 + load.drafts
        tokens = load.requests * rows / halves
        alone = self._tp == 1
        own = tokens if alone else self.own(tokens)
        mean = (load.requests if load.mean_requests is None else load.mean_requests) * rows / halves / self._tp
        context = load.context_tokens / halves
        read = self.read_tokens(load) / halves
        core_t = c.core_t if load.drafts else c.core_single_t
        experts = group.read(mean * load.dies)
        half = HalfBatch(
            c.prolog_t * tokens,
            core_t * rows * read,
            c.core_w * read,
            c.output_t * tokens,
            c.attention_v * own,
            2 * cal.exchange_floor_s + (group.dispatch_t + group.combine_t) * own,
            c.expert_t * (group.busiest(mean, load.imbalance) + cal.small_gemm_tokens * experts),
            c.expert_w * experts,
            c.expert_v * own,
            c.dense_t * tokens,
            c.dense_v * own,
            0.0 if alone else self.collectives.pair_s + self.collectives.pair_t * tokens,
        )
        if c.indexer is None:
            return self._at_least(half, group, own) if self._floored else half
        index, whole = c.indexer, c.core_w * context
        scattered = index.gathered_w * rows * read
        half = half._replace(
            core_w=scattered if scattered < whole else whole,
            index_c=index.product_t * tokens,
            score_c=index.score_t * rows * context,
            score_w=index.score_w * context,
            score_vector=index.score_vector_t * rows * context,
        )
        return self._at_least(half, group, own) if self._floored else half

    def _at_least(self, half: HalfBatch, group: GroupTerms, own: float) -> HalfBatch:
        """Operators that take at least the time of their small kernels, and exchanges that of the network."""
        c, floor = self.terms, self.device.calibration.exchange_floor_s
        exchanges = (max(floor + each * own, group.least) for each in (group.dispatch_t, group.combine_t))
        return half._replace(
            core_w=max(half.core_w, c.core_floor),
            attention_vector=max(half.attention_vector, c.norm_floor),
            exchange=sum(exchanges) if group.slots else half.exchange,
            expert_w=max(half.expert_w, c.expert_floor),
            expert_vector=max(half.expert_vector, c.gate_floor),
            dense_vector=max(half.dense_vector, c.norm_floor),
        )

    def attention_s(self, half: HalfBatch, share: float) -> float:
        """The attention stream of one layer with a share of the cores."""
        c = self.terms
        prolog, output, core = half.prolog_c / share, half.output_c / share, half.core_c / share
        return (
            (prolog if prolog > c.prolog_w else c.prolog_w)
            + (core if core > half.core_w else half.core_w)
            + (output if output > c.output_w else c.output_w)
            + half.attention_vector / share
            + c.attention_start
            + half.collective
            + (self.indexer_s(half, share) if c.indexer is not None else 0.0)
        )

    def indexer_s(self, half: HalfBatch, share: float) -> float:
        """The indexer's part of the attention stream with a share of the cores; 0 without one."""
        index = self.terms.indexer
        if index is None:
            return 0.0
        products, scores = half.index_c / share, half.score_c / share
        return (
            (products if products > index.product_w else index.product_w)
            + (scores if scores > half.score_w else half.score_w)
            + half.score_vector / share
        )

    def expert_s(self, half: HalfBatch, share: float) -> float:
        """The expert stream of one layer with a share of the cores."""
        product = half.expert_c / share
        return (
            half.exchange
            + (product if product > half.expert_w else half.expert_w)
            + half.expert_vector / share
            + self.terms.expert_start
        )

    def dense_s(self, half: HalfBatch, share: float) -> float:
        """Time of a dense layer in place of the expert stream: one feed-forward, no dispatch."""
        product = half.dense_c / share
        return (
            (product if product > self.terms.dense_w else self.terms.dense_w)
            + half.dense_vector / share
            + self.terms.dense_start
            + half.collective
        )

    def best_share(self, half: HalfBatch) -> float:
        """The attention stream's share of the cores at which the slower stream is fastest.

        Attention falls and experts rise with the share, so the crossing is found by halving; the better of its two
        sides wins.
        """
        shares = self._shares
        low, high = 0, len(shares) - 1
        while low < high:
            middle = (low + high) // 2
            share = shares[middle]
            if self.attention_s(half, share) > self.expert_s(half, 1 - share):
                low = middle + 1
            else:
                high = middle
        share = shares[low]
        if low and self.attention_s(half, shares[low - 1]) < self.expert_s(half, 1 - share):
            return shares[low - 1]
        return share

    def layers_s(self, load: DecodeLoad, *, microbatch: bool) -> tuple[float, float]:
        """One expert layer and one dense layer, all halves."""
        if not microbatch:
            half = self.half_batch(load, 1)
            attention = self.attention_s(half, 1.0)
            return attention + self.expert_s(half, 1.0), attention + self.dense_s(half, 1.0)
        half = self.half_batch(load, 2)
        handover = self.device.calibration.handover_s
        if not self._split:
            return self._hidden_s(half) + handover, 2 * (self.attention_s(half, 1.0) + self.dense_s(half, 1.0))
        share = self.best_share(half)
        attention = self.attention_s(half, share)
        slower = max(attention, self.expert_s(half, 1 - share))
        dense = max(attention, self.dense_s(half, 1 - share))
        return 2 * slower + handover, 2 * dense + handover

    def _hidden_s(self, half: HalfBatch) -> float:
        """One expert layer, both halves: computation is serial, a half's exchange runs behind the other's work."""
        work = self.attention_s(half, 1.0) + self.expert_s(half, 1.0) - half.exchange
        return 2 * max(work, half.exchange)

    def outside_s(self, load: DecodeLoad) -> float:
        """LM heads, the MTP modules' merging product, sampling, and the start of the step."""
        c, cal = self.terms, self.device.calibration
        requests, tokens = load.requests, load.requests * (1 + load.drafts)
        if self._tp > 1:
            requests, tokens = self.own(requests), self.own(tokens)
        head = self.head_s(tokens)
        if self.drafter is not None:
            return cal.step_start_s + cal.sampling_s * tokens + head + self.drafts_s(load)
        draft = self.head_s(requests) + max(c.merge_t * tokens, c.merge_w)
        return cal.step_start_s + cal.draft_start_s * load.drafts + cal.sampling_s * tokens + head + load.drafts * draft

    def drafts_s(self, load: DecodeLoad) -> float:
        """Passes of a separate draft model, one for each draft token; 0 without one.

        The first pass has a row for each token that the target verified, the others one for each sequence.
        """
        step, total = self.drafter, 0.0
        if step is None:
            return total
        for number in range(load.drafts):
            rows = load.drafts if number == 0 else 0
            one = DecodeLoad(load.requests, load.context_tokens, load.mean_requests, load.dies, rows, False)
            tokens = step.own(load.requests * (1 + rows))
            total += self.device.calibration.draft_start_s
            total += step._dense_layers * step.layers_s(one, microbatch=False)[1]
            total += step.head_s(step.own(load.requests)) + max(step.terms.merge_t * tokens, step.terms.merge_w)
        return total

    def head_s(self, rows: float) -> float:
        """One LM head for the rows of one die, with what a split one exchanges."""
        c, between = self.terms, self.collectives
        return max(c.head_t * rows, c.head_w) + between.head_s + between.head_t * rows

    def seconds(self, load: DecodeLoad) -> Seconds:
        """Duration of one step.

        Args:
            load: of the fullest die, or of the fullest group; see `DecodeLoad`.
        Returns: elapsed time [s].
        Source: CloudMatrix384 paper 4.2.3, 4.2.4; efficiencies from the device file.
        """
        halved = load.microbatch if self._exchanges else False
        if halved is not None:
            layers = self._all_layers_s(load, microbatch=halved)
        else:
            layers = min(self._all_layers_s(load, microbatch=True), self._all_layers_s(load, microbatch=False))
        return Seconds(layers + self.outside_s(load))

    def _all_layers_s(self, load: DecodeLoad, *, microbatch: bool) -> float:
        layer, dense = self.layers_s(load, microbatch=microbatch)
        own_drafts = load.drafts if self.drafter is None else 0
        return (self._moe_layers + own_drafts) * layer + self._dense_layers * dense
