"""A step of an aggregated instance that does both: prompt chunks, and a token for each running sequence.

    apart      | weights | prompts' products | ... | + | weights | rows | cores, exchange | ... |
    together   | weights | prompts' products + rows  | cores, exchange of both | fixed parts once |

Weights are read once: decoding rows in a step with a chunk cost only their products, not a read. If the chunk is so
short that its own products are hidden behind that read, theirs are hidden, too. Core attention, exchange, element-wise
work and draft modules are summed; the LM head's weights, kernel launches and the start of the step count once.

No published row has such a step: both limits, decode alone and prompts alone, are the priced ones; between them this is
arithmetic. It ignores that chunk and rows could hide more of each other's exchange, or delay each other.
"""

from dataclasses import replace

from hardware.cost.cost_model import CostModel
from hardware.cost.decode_step import DecodeStep
from hardware.cost.decode_terms import DecodeTerms
from hardware.cost.disaggregated import ApartDecodeStep
from hardware.cost.engine_profile import EnginePhase
from hardware.cost.loads import DecodeLoad, PrefillLoad
from hardware.errors import SpecError
from hardware.units import Seconds


class MixedStep:
    """Mixed steps of one cost model.

    Raises: SpecError with experts on dies of their own.
    """

    def __init__(self, cost: CostModel) -> None:
        if isinstance(cost.decode, ApartDecodeStep):
            raise SpecError("expert_dies is of decode: no aggregated with experts on dies of their own is priced")
        self._cost = cost
        self._decode, self._prefill = cost.decode, cost.prefill
        self._rows = DecodeStep(cost.device, cost.shape, cost.decode.parallelism)
        self._rows.terms = _without_reads(cost.decode.terms)

    def seconds(self, decode: DecodeLoad, prefill: PrefillLoad) -> Seconds:
        """Duration of one step [s].

        Never less than either part alone. An engine's fixed time comes once, its times of tokens for all; no graph is
        captured of such a step, so there is no padding.

        Raises: SpecError for drafts of a model without MTP modules.
        Effects: fills a cache.
        """
        cost = self._cost
        if not decode.requests:
            return cost.prefill_step_s(prefill)
        alone = cost.decode_step_s(decode)
        if not prefill.tokens:
            return alone
        prompts, rows, shared = cost.prefill_step_s(prefill), self.rows_s(decode), self.shared_s(decode, prefill)
        if cost.engine is not None:
            ours, theirs = cost.engine.decode, cost.engine.prefill
            if ours is not None:
                tokens = decode.requests * (1 + decode.drafts) / cost.decode.parallelism.attention_tp
                rows = ours.seconds(rows, tokens, decode.requests)
            works = [1.0 if one is None else one.work for one in (ours, theirs)]
            fixed = [0.0 if one is None else _fixed_s(one) for one in (ours, theirs)]
            shared = shared * min(works) + min(fixed)
        return Seconds(max(alone, prompts, rows + prompts - shared))

    def rows_s(self, load: DecodeLoad) -> float:
        """Duration of a decode step whose layer weights the prompt chunk has read [s]. Effects: fills a cache."""
        return self._rows.seconds(load)

    def shared_s(self, decode: DecodeLoad, prefill: PrefillLoad) -> float:
        """Time that separate steps spend twice and a mixed step once [s]; without the rows' reads of weights.

        Effects: fills a cache.
        """
        step, cal = self._decode, self._decode.device.calibration
        half, terms = step.half_batch(decode, 1), step.terms
        attention = half.prolog_c + half.output_c
        expert, dense = (self._slack_s(prefill, dense=dense) for dense in (False, True))
        hidden = step.shape.moe_layers * min(expert, attention + half.expert_c)
        hidden += step.shape.dense_layers * min(dense, attention + half.dense_c)
        starts = min(cal.prefill_launch_s, terms.attention_start + terms.expert_start) * step.shape.layers
        return hidden + starts + terms.head_w + min(cal.step_start_s, cal.prefill_fixed_s)

    def _slack_s(self, load: PrefillLoad, *, dense: bool) -> float:
        """Time of one layer in which a chunk only waits for weights [s]; 0 if the model has no such layer."""
        shape = self._decode.shape
        if not (shape.dense_layers if dense else shape.moe_layers):
            return 0.0
        layer = self._prefill.layer(load, halves=1, dense=dense)
        return max(0.0, layer.weights - layer.products - layer.experts)


def _fixed_s(phase: EnginePhase) -> float:
    """Time of an engine in each of its steps, where the device does not hide it [s]."""
    return phase.step_s + (0.0 if phase.overlapped else phase.host_step_s)


def _without_reads(terms: DecodeTerms) -> DecodeTerms:
    indexer = None if terms.indexer is None else replace(terms.indexer, product_w=0.0)
    return replace(terms, prolog_w=0.0, output_w=0.0, dense_w=0.0, expert_w=0.0, indexer=indexer)
