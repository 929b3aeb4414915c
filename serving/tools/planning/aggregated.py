"""Aggregated instances worth a simulation, and their minimum number."""

from dataclasses import replace
from itertools import product

import numpy as np

from hardware.cost import CostModel
from loadgen.report import numbers
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.bounds import Dropped
from serving.tools.planning.candidate import DIES_PER_NPU, Both, Shape
from serving.tools.planning.demand import PlanDemand
from serving.tools.planning.knowledge import Floor
from serving.tools.planning.limits import SearchLimits, decode_limits, prefill_limits
from serving.tools.planning.verdict import PlanTarget

_SHORTER = 16
"""A step so many times shorter than a prefill instance's is tried, too: running answers wait for each."""


def both_floors(
    cost: CostModel,
    config: ServeConfig,
    demand: PlanDemand,
    wanted: SearchLimits,
    target: PlanTarget,
    dropped: list[Dropped],
) -> dict[Both, Floor]:
    """Aggregated instances that can meet the limits at all, the preferred ones first, each with its minimum number.

    Raises: ConfigError if there is none, or the model does not allow a division.
    Effects: adds the others to `dropped`.
    """
    simulation = config.simulation
    degrees = wanted.attention_tp or (simulation.decode_attention_tp,)
    copies = wanted.redundant or (simulation.redundant_experts,)
    kinds = [Shape(npus, 0, tp, 0, count) for tp, count in product(degrees, copies) for npus in wanted.aggregated_sizes]
    closest: tuple[float, str] = (-1.0, "")
    found: dict[Both, Floor] = {}
    for kind in kinds:
        divided, what = bounds.shape_cost(cost, kind), f"aggregated instances of {kind.npus} NPUs{kind.division}"
        reason = bounds.misfit(divided, "aggregated", kind.npus)
        if reason is None and kind.npus > wanted.budget:
            reason = f"one of them takes more than {wanted.budget} NPUs"
        if reason is None:
            share = _share(divided, config, demand, kind.npus, target)
            closest = max(closest, (share, what))
            if share < target.attainment:
                reason = f"even an idle one keeps {target.limits} for {numbers.share(share)} of requests only"
        if reason is not None:
            dropped.append(Dropped(what, reason))
            continue
        for both in _limited(divided, config, demand, wanted, target, kind, dropped):
            least = bounds.least_both(cost, config, demand, both, target)
            found[both] = Floor(least, f"by the cost model, {least - 1} x {kind.npus} NPUs do less than requested")
    if not found:
        raise ConfigError(_impossible(*closest, target, dropped))
    return found


def _share(cost: CostModel, config: ServeConfig, demand: PlanDemand, npus: int, target: PlanTarget) -> float:
    """Requests that an idle instance serves within both limits, and has capacity for: 0..1."""
    in_time = bounds.prefill_times(cost, config, demand, npus) <= target.ttft_s
    fast = bounds.decode_times(cost, config, demand, npus, handoff=False) <= target.tpot_s
    room = demand.prompt <= cost.hbm_plan("aggregated", npus * DIES_PER_NPU).instance_kv_tokens
    return float(np.count_nonzero(in_time & fast & room)) / len(demand)


def _limited(
    cost: CostModel,
    config: ServeConfig,
    demand: PlanDemand,
    wanted: SearchLimits,
    target: PlanTarget,
    kind: Shape,
    dropped: list[Dropped],
) -> list[Both]:
    """One kind with its batch limits. Effects: adds those that cannot be to `dropped`."""
    npus, found = kind.npus, []
    sequences = wanted.decode_limits or decode_limits(cost, config, demand, npus, target)
    usual, room = prefill_limits(config, wanted)[0], max(sequences) * DIES_PER_NPU
    chunks = wanted.prefill_limits or tuple(dict.fromkeys((max(usual, room), max(usual // _SHORTER, room))))
    for tokens, limit in product(chunks, sequences):
        if tokens >= limit * DIES_PER_NPU:
            found.append((Shape(npus, tokens), replace(kind, limit=limit)))
            continue
        what = f"aggregated instances of {npus} NPUs at {tokens:,} tokens/NPU, {limit} sequences/die"
        why = f"a step of {tokens * npus:,} tokens cannot feed {limit * npus * DIES_PER_NPU:,} running sequences"
        dropped.append(Dropped(what, why))
    return found


def _impossible(share: float, what: str, target: PlanTarget, dropped: list[Dropped]) -> str:
    """One line with the achievable value."""
    if share < 0 or share >= target.attainment:
        reasons = [one for one in dropped if one.what.startswith("aggregated")]
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"no aggregated size is possible{more}; {reasons[0].what}: {reasons[0].why}"
    return (
        f"{target.limits} for {100 * target.attainment:g} % of requests: {what} keep them for {numbers.share(share)} "
        f"even when idle: relax --ttft, --tpot or --attainment, or offer other --sizes-aggregated"
    )
