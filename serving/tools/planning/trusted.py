"""Accuracy of a plan's times, with batches and prefill steps as full as it allows."""

from hardware.cost import CostModel
from hardware.cost.trust import both_trusts, decode_trust, engine_text_of, prefill_trust
from serving.config.serve import ServeConfig
from serving.tools.planning.bounds import shape_cost
from serving.tools.planning.candidate import DIES_PER_NPU
from serving.tools.planning.plan import DemandFigures, Option
from serving.virtual.trusted import MIXED


def plan_accuracy(cost: CostModel, config: ServeConfig, best: Option | None, demand: DemandFigures) -> str:
    """Device and engine for which a plan holds, and the possible error of its times.

    Effects: reads files of the device and of the engine.
    """
    whose = f"{cost.device.name}, engine {engine_text_of(cost)}"
    if best is None:
        return whose
    one = best.candidate
    cost = shape_cost(cost, one.decode)
    decode = decode_trust(
        cost, one.decode.limit * DIES_PER_NPU, round(demand.mean_prompt + demand.mean_output / 2),
        config.simulation.drafts, dies=one.decode.npus * DIES_PER_NPU,
    )  # fmt: skip
    prefill = prefill_trust(
        cost, one.prefill.limit / DIES_PER_NPU, round(demand.mean_prompt), dies=one.prefill.npus * DIES_PER_NPU
    )
    mixed = MIXED if one.aggregated else ""
    return f"{whose}; in full steps {both_trusts(decode, prefill)}{mixed}"
