"""Demand of a workload compared with the capacity of one instance of each shape, as text."""

import numpy as np

from hardware.cost import CostModel
from hardware.cost.trust import both_trusts, decode_trust, engine_text_of, npus_text, prefill_trust
from serving.config.serve import ServeConfig
from serving.tools.planning import bounds
from serving.tools.planning.bounds import shape_cost
from serving.tools.planning.candidate import DIES_PER_NPU
from serving.tools.planning.feasible import SearchStart
from serving.tools.planning.plan import DemandFigures, Option, ShapeBound
from serving.tools.planning.trace import PlanDemand
from serving.tools.planning.verdict import PlanTarget
from serving.virtual.work_done import MIXED


def demand_figures(demand: PlanDemand) -> DemandFigures:
    """Means and tails of a workload."""
    span_s = max(demand.duration_s, 1e-9)
    return DemandFigures(
        duration_s=demand.duration_s,
        requests_per_s=len(demand) / span_s,
        prompt_tokens_per_s=float(demand.prompt.sum()) / span_s,
        uncached_tokens_per_s=float(demand.uncached.sum()) / span_s,
        output_tokens_per_s=float(demand.output.sum()) / span_s,
        mean_prompt=float(demand.prompt.mean()),
        p99_prompt=float(np.percentile(demand.prompt, 99)),
        mean_output=float(demand.output.mean()),
        p99_output=float(np.percentile(demand.output, 99)),
    )


def shape_bounds(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, begin: SearchStart, target: PlanTarget
) -> list[ShapeBound]:
    """Best rate of one instance of each shape by the cost model, and how many the load needs at the least."""
    context = float(demand.prompt.mean())
    found = [
        ShapeBound("prefill", shape.npus, shape.limit, rate, floor.least)
        for shape, floor in begin.prefill.items()
        for rate in (bounds.prefill_tokens_per_s(cost, config, shape, demand.attended),)
    ]
    found += [
        ShapeBound(
            "decode", shape.npus, shape.limit, bounds.decode_tokens_per_s(cost, config, context, shape, target),
            floor.least, shape.division,
        )
        for shape, floor in begin.decode.items()
    ]  # fmt: skip
    each = float(demand.uncached.mean() + demand.output.mean())
    found += [
        ShapeBound(
            "aggregated", both[1].npus, both[1].limit, each * bounds.both_per_s(cost, config, demand, both, target),
            floor.least, both[1].division, both[0].limit,
        )
        for both, floor in begin.both.items()
    ]  # fmt: skip
    return found


# Accuracy of a plan's times, with batches and prefill steps as full as it allows.


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
    mixed = MIXED if one.one_pool else ""
    npus = npus_text(decode, prefill, one.decodes * one.decode.npus, one.prefills * one.prefill.npus)
    return f"{whose}; {npus}; in full steps {both_trusts(decode, prefill)}{mixed}"
