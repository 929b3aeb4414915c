"""Demand of a workload compared with the capacity of one instance of each shape, as text."""

import numpy as np

from hardware.cost import CostModel
from serving.config.serve import ServeConfig
from serving.tools.planning import bounds
from serving.tools.planning.feasible import SearchStart
from serving.tools.planning.plan import DemandFigures, ShapeBound
from serving.tools.planning.trace import PlanDemand
from serving.tools.planning.verdict import PlanTarget


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
