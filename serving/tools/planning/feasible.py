"""Instance sizes worth a simulation, and their minimum number: the search's start."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hardware.cost import CostModel
from hardware.cost.cost_model import mtp_tokens_per_step
from hardware.cost.memory_plan import Role
from loadgen.report import numbers
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.tools.planning import bounds
from serving.tools.planning.bounds import Dropped, SearchLimits, decode_limits, prefill_limits
from serving.tools.planning.candidate import DIES_PER_NPU, Both, Candidate, SearchSpace, Shape
from serving.tools.planning.knowledge import Floor
from serving.tools.planning.trace import PlanDemand
from serving.tools.planning.verdict import PlanTarget


@dataclass(frozen=True, slots=True)
class SearchStart:
    """Starting state of the search."""

    space: SearchSpace
    prefill: dict[Shape, Floor]
    decode: dict[Shape, Floor]
    dropped: list[Dropped]
    both: dict[Both, Floor] = field(default_factory=dict)

    def without_floors(self) -> "SearchStart":
        """The same for a closed loop, whose rate depends on the system: any number of instances may suffice."""
        one = Floor(1, "")
        return replace(
            self, prefill=dict.fromkeys(self.prefill, one), decode=dict.fromkeys(self.decode, one),
            both=dict.fromkeys(self.both, one),
        )  # fmt: skip


def start(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, wanted: SearchLimits, target: PlanTarget
) -> SearchStart:
    """Drop impossible options, and find the lower bounds of the rest.

    Raises: ConfigError if no option can meet the target, in one line with the achievable value.
    """
    if wanted.modes == ("disaggregated",):
        return _pools(cost, config, demand, wanted, target)
    dropped: list[Dropped] = []
    both: dict[Both, Floor] = {}
    begin = SearchStart(SearchSpace((), (), wanted.budget), {}, {}, [])
    refused: list[ConfigError] = []
    try:
        both = both_floors(cost, config, demand, wanted, target, dropped)
    except ConfigError as error:
        refused.append(error)
    if "disaggregated" in wanted.modes:
        try:
            begin = _pools(cost, config, demand, wanted, target)
        except ConfigError as error:
            refused.append(error)
            dropped.append(Dropped("prefill and decode pools", str(error)))
    if len(refused) == len(wanted.modes):
        raise refused[-1]
    space = replace(begin.space, both=tuple(both))
    return replace(begin, space=space, dropped=begin.dropped + dropped, both=both)


def check_memory(cost: CostModel, config: ServeConfig, wanted: SearchLimits, target: PlanTarget) -> None:
    """Refuse a question whose model fits no instance of a size on offer, before a trace is read.

    Raises: ConfigError, also for a division that the model or the device does not allow.
    """
    copies = wanted.redundant or (config.simulation.redundant_experts,)
    degrees = wanted.attention_tp or (config.simulation.decode_attention_tp,)
    apart = wanted.expert_dies or (config.simulation.expert_dies,)
    if wanted.modes != ("disaggregated",):
        return  # the other pools may fit
    full, sizes = bounds.copied_cost(cost, max(copies)), wanted.prefill_sizes
    _one_fits("prefill", (Shape(0, 0, redundant=max(copies)),), sizes, full, wanted, target)
    shapes = tuple(Shape(0, 0, *one) for one in product(degrees, apart, copies) if not (one[0] > 1 and one[1]))
    _one_fits("decode", shapes, wanted.decode_sizes, cost, wanted, target)


def _one_fits(
    pool: Role,
    shapes: tuple[Shape, ...],
    sizes: tuple[int, ...],
    cost: CostModel,
    wanted: SearchLimits,
    target: PlanTarget,
) -> None:
    dropped: list[Dropped] = []
    sides = [_Side(pool, "", 0.0, lambda _: np.array([]), lambda _: 0.0, shape) for shape in shapes]
    if all([_too_large(npus, side, cost, wanted, dropped) for side in sides for npus in sizes]) and sides:
        raise _impossible(sides[0], -1.0, 0, target, dropped)


def _pools(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, wanted: SearchLimits, target: PlanTarget
) -> SearchStart:
    """Prefill and decode pools. Raises: ConfigError as `start`."""
    dropped: list[Dropped] = []
    # Prompts are computed fastest with the fewest copies, which read least, and fit worst with the most.
    copies = wanted.redundant or (config.simulation.redundant_experts,)
    fast, full = (bounds.copied_cost(cost, count) for count in (min(copies), max(copies)))
    side = _prefill_side(fast, config, demand, target, max(copies))
    prefills = _sizes(side, wanted.prefill_sizes, full, wanted, target, dropped)
    decodes = _decode_sizes(cost, config, demand, wanted, target, dropped)
    prefill_shapes = [Shape(npus, limit) for limit in prefill_limits(config, wanted) for npus in prefills]
    decode_shapes = [
        replace(shape, limit=limit)
        for shape in decodes
        for limit in wanted.decode_limits
        or decode_limits(bounds.shape_cost(cost, shape), config, demand, shape.npus, target)
    ]
    space = SearchSpace(tuple(prefill_shapes), tuple(decode_shapes), wanted.budget)
    smallest = min(shape.npus for shape in decodes)
    if min(prefills) + smallest > wanted.budget:
        raise ConfigError(
            f"{wanted.budget} NPUs hold no plan: the smallest prefill and decode instances take {min(prefills)} + "
            f"{smallest}"
        )
    prefill = {
        one: Floor(least, f"by the cost model, {least - 1} x {one.npus} NPUs compute prompts slower than they come")
        for one in space.prefill
        for least in (bounds.least_prefills(fast, config, demand, one, target),)
    }
    decode = {
        one: Floor(least, f"by the cost model, {least - 1} x {one.npus} NPUs generate slower than requested")
        for one in space.decode
        for least in (bounds.least_decodes(cost, config, demand, one, target),)
    }
    return SearchStart(space, prefill, decode, dropped)


def capacity_per_s(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, target: PlanTarget, one: Candidate
) -> float:
    """Requests per second that a split serves at most, by the cost model with an ideal cache."""
    if one.one_pool:
        return one.decodes * bounds.both_per_s(cost, config, demand, one.both, target)
    context = float(demand.prompt.mean())
    rate = one.prefills * bounds.prefill_tokens_per_s(cost, config, one.prefill, demand.attended)
    prompts = rate / float(demand.uncached.mean())
    tokens = one.decodes * bounds.decode_tokens_per_s(cost, config, context, one.decode, target)
    return min(prompts, tokens / float(demand.output.mean()))


@dataclass(frozen=True, slots=True)
class _Side:
    """One pool's limit, and the speed of an idle instance.

    Attributes:
        times: least latency of each request, by size [s]. floor_s: least latency that any request can have, by size.
    """

    pool: Role
    metric: str
    limit_s: float
    times: Callable[[int], NDArray[np.float64]]
    floor_s: Callable[[int], float]
    shape: Shape

    @property
    def limit(self) -> str:
        """In words, as in "TTFT of 2 s"."""
        return f"{self.metric} of {numbers.limit(self.limit_s)}"

    def instances(self, npus: int) -> str:
        """Instances of one size, in words."""
        tp, experts, copies = self.shape.attention_tp, self.shape.expert_dies, self.shape.redundant
        divided = f", attention TP {tp}" if tp > 1 else ""
        apart = f", {experts} dies of experts" if experts else ""
        copied = f", {copies} redundant experts" if copies >= 0 else ""
        return f"{self.pool} instances of {npus} NPUs{divided}{apart}{copied}"


def _prefill_side(cost: CostModel, config: ServeConfig, demand: PlanDemand, target: PlanTarget, copies: int) -> _Side:
    def times(npus: int) -> NDArray[np.float64]:
        return bounds.prefill_times(cost, config, demand, npus)

    return _Side(
        "prefill", "TTFT", target.ttft_s, times, lambda npus: float(times(npus).min()), Shape(0, 0, redundant=copies)
    )


def _decode_side(cost: CostModel, config: ServeConfig, demand: PlanDemand, target: PlanTarget, shape: Shape) -> _Side:
    def divided(npus: int) -> CostModel:
        return bounds.shape_cost(cost, replace(shape, npus=npus))

    drafts = config.simulation.drafts
    tokens = mtp_tokens_per_step(drafts, config.simulation.acceptance)
    context = float(demand.prompt.min())
    return _Side(
        "decode", "TPOT", target.tpot_s, lambda npus: bounds.decode_times(divided(npus), config, demand, npus),
        lambda npus: bounds.least_step_s(divided(npus), npus, context, drafts) / tokens, shape,
    )  # fmt: skip


def _decode_sizes(
    cost: CostModel,
    config: ServeConfig,
    demand: PlanDemand,
    wanted: SearchLimits,
    target: PlanTarget,
    dropped: list[Dropped],
) -> list[Shape]:
    """Decode instances, without a batch limit, that can meet the limit at all.

    Raises: ConfigError if there is none, or the model does not allow one of the degrees.
    Effects: adds the others to `dropped`.
    """
    found: list[Shape] = []
    refused: ConfigError | None = None
    degrees = wanted.attention_tp or (config.simulation.decode_attention_tp,)
    apart = wanted.expert_dies or (config.simulation.expert_dies,)
    copies = wanted.redundant or (config.simulation.redundant_experts,)
    for tp, experts, redundant in product(degrees, apart, copies):
        if tp > 1 and experts and 1 in degrees:
            continue  # is not priced, and other degrees are
        shape = Shape(max(wanted.decode_sizes), 0, tp, experts, redundant)
        bounds.shape_cost(cost, shape)
        side = _decode_side(cost, config, demand, target, shape)
        try:
            sizes = _sizes(side, wanted.decode_sizes, cost, wanted, target, dropped)
            found += [replace(shape, npus=npus) for npus in sizes]
        except ConfigError as error:
            refused = refused or error
    if refused is not None and not found:
        raise refused
    return found


def _sizes(
    side: _Side,
    sizes: tuple[int, ...],
    cost: CostModel,
    wanted: SearchLimits,
    target: PlanTarget,
    dropped: list[Dropped],
) -> list[int]:
    """Sizes that can meet the limit at all.

    Raises: ConfigError if there is none.
    Effects: adds the others to `dropped`.
    """
    kept: list[int] = []
    closest: tuple[float, int] = (-1.0, 0)
    for npus in sizes:
        if _too_large(npus, side, cost, wanted, dropped):
            continue
        share = bounds.share_within(side.times(npus), side.limit_s)
        closest = max(closest, (share, npus))
        if share >= target.attainment:
            kept.append(npus)
        else:
            why = f"even an idle one keeps {side.limit} for {numbers.share(share)} of requests only"
            dropped.append(Dropped(side.instances(npus), why))
    if not kept:
        raise _impossible(side, *closest, target, dropped)
    return kept


def _too_large(npus: int, side: _Side, cost: CostModel, wanted: SearchLimits, dropped: list[Dropped]) -> bool:
    if side.pool == "decode":
        cost = bounds.shape_cost(cost, replace(side.shape, npus=npus))
    reason = bounds.misfit(cost, side.pool, npus)
    if reason is None and npus >= wanted.budget:
        reason = f"one of them leaves none of {wanted.budget} NPUs for the other pool"
    if reason is not None:
        dropped.append(Dropped(side.instances(npus), reason))
    return reason is not None


def _impossible(side: _Side, share: float, npus: int, target: PlanTarget, dropped: list[Dropped]) -> ConfigError:
    """One line with the achievable value."""
    if not npus:
        reasons = [f"{one.what}: {one.why}" for one in dropped if one.what.startswith(side.pool)]
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return ConfigError(f"no {side.pool} size is possible{more}; {reasons[0]}: offer other --sizes-{side.pool}")
    floor_s = side.floor_s(npus)
    if side.limit_s < floor_s:
        least = numbers.duration(floor_s)
        return ConfigError(f"{side.limit}: the smallest possible is {least}, in an idle instance of {npus} NPUs")
    needed = numbers.duration(float(np.quantile(side.times(npus), target.attainment)))
    return ConfigError(
        f"{side.limit} for {100 * target.attainment:g} % of requests: an idle instance of {npus} NPUs keeps it for "
        f"{numbers.share(share)}, and {needed} for as many as that: relax --{side.metric.lower()} or --attainment, or "
        f"offer other --sizes-{side.pool}"
    )


# Aggregated instances worth a simulation, and their minimum number.

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
        raise ConfigError(_aggregated_impossible(*closest, target, dropped))
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
    """Pairs of shapes for aggregated instances of one kind, one for each choice of batch limits.

    Effects: adds impossible limits to `dropped`.
    """
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


def _aggregated_impossible(share: float, what: str, target: PlanTarget, dropped: list[Dropped]) -> str:
    """One line with the achievable value."""
    if share < 0 or share >= target.attainment:
        reasons = [one for one in dropped if one.what.startswith("aggregated")]
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"no aggregated size is possible{more}; {reasons[0].what}: {reasons[0].why}"
    return (
        f"{target.limits} for {100 * target.attainment:g} % of requests: {what} keep them for {numbers.share(share)} "
        f"even when idle: relax --ttft, --tpot or --attainment, or offer other --sizes-aggregated"
    )
