"""Bounds by the cost model alone: limits that no number of instances can fix, and the least number of instances.

Every bound is optimistic: prompts meet an idle instance and a cache without limits, decodes an empty batch and the
highest acceptance of drafts. A failure here implies a failure in every simulation, so none is needed.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hardware.cost import CostModel
from hardware.cost.cost_model import mtp_tokens_per_step
from hardware.cost.loads import DecodeLoad, PrefillLoad
from hardware.cost.memory_plan import Role
from hardware.cost.mixed_step import MixedStep
from hardware.cost.parallelism import domains_of
from hardware.errors import SpecError
from serving.config.engine import ServingMode
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.tools.planning.candidate import DIES_PER_NPU, Both, Shape
from serving.tools.planning.trace import PlanDemand
from serving.tools.planning.verdict import PlanTarget
from serving.virtual import work_done

_CONTEXT_STEP = 2048
_SAFETY = 0.8
"""Factor on rates: the cost model's best step against the mean; not every token need arrive in time."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A size, or a number of instances, that is not simulated, and why."""

    what: str
    why: str


def decode_cost(
    cost: CostModel, attention_tp: int, npus: int = 0, expert_dies: int = 0, redundant: int = -1
) -> CostModel:
    """The cost model with this many dies of a decode instance sharing their sequences, or this many with experts only.

    Args:
        redundant: as `Shape.redundant`, of instances of both roles; of decode where the load of experts is drawn.
        npus: of an instance: its attention dies have the configured number of domains, or the next lower divisor.
    Raises: ConfigError if the model or the device does not allow it.
    """
    domains = cost.decode.parallelism.domains
    if expert_dies:
        domains = domains_of(npus * DIES_PER_NPU, expert_dies, domains)
    return _divided(cost, attention_tp, expert_dies, domains, None if redundant < 0 else redundant)


def copied_cost(cost: CostModel, redundant: int) -> CostModel:
    """The cost model with other copies of experts, else as it is. Raises: ConfigError as `decode_cost`."""
    decode = cost.decode.parallelism
    copies = None if redundant < 0 else redundant
    return _divided(cost, decode.attention_tp, decode.expert_dies, decode.domains, copies)


def shape_cost(cost: CostModel, shape: Shape) -> CostModel:
    """The cost model of one shape of decode instances. Raises: ConfigError as `decode_cost`."""
    return decode_cost(cost, shape.attention_tp, shape.npus, shape.expert_dies, shape.redundant)


@lru_cache(maxsize=64)
def _divided(cost: CostModel, attention_tp: int, expert_dies: int, domains: int, redundant: int | None) -> CostModel:
    decode, prefill = cost.decode.parallelism, cost.prefill.parallelism
    try:
        divided = replace(decode, attention_tp=attention_tp, expert_dies=expert_dies, domains=domains)
        if decode.redundant_slots is None:
            prefill = replace(prefill, redundant_experts=redundant)
            divided = replace(divided, redundant_experts=redundant)
        elif redundant is not None:
            divided = replace(divided, redundant_slots=redundant)
        if divided == decode:
            return cost
        return CostModel(cost.device, cost.shape, cost.engine, decode=divided, prefill=prefill)
    except SpecError as error:
        raise ConfigError(str(error)) from error


def prefill_times(cost: CostModel, config: ServeConfig, demand: PlanDemand, npus: int) -> NDArray[np.float64]:
    """Least time to the first token of each request in an idle instance. Returns: [requests] float64 [s]."""
    table = cost.prefill_table(dies=npus * DIES_PER_NPU, perfect_balance=config.simulation.expert_balance == "perfect")
    uncached = demand.uncached
    attended = uncached * (demand.reused + uncached / 2)
    pairs = zip(uncached.tolist(), attended.tolist(), strict=True)
    return config.simulation.gateway_s + np.array([table.seconds(new, seen) for new, seen in pairs])


def decode_times(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, npus: int, *, handoff: bool = True
) -> NDArray[np.float64]:
    """Least time per output token of each request in an empty instance; 0 for one token. [requests] float64 [s].

    Args:
        handoff: the prompt's cache comes from an instance of another pool.
    """
    drafts = config.simulation.drafts
    gaps = demand.output - 1
    steps = np.ceil(gaps / (1 + drafts))
    cells = demand.prompt // _CONTEXT_STEP
    step_s = {cell: least_step_s(cost, npus, cell * _CONTEXT_STEP, drafts) for cell in sorted(set(cells.tolist()))}
    moved_s = np.zeros(len(demand))
    if handoff:
        moved_s = np.array([cost.handoff_s(cost.kv_bytes(tokens)) for tokens in demand.uncached.tolist()])
    whole = steps * np.array([step_s[cell] for cell in cells.tolist()]) + moved_s
    return np.where(gaps > 0, whole / np.maximum(gaps, 1), 0.0)


def least_step_s(cost: CostModel, npus: int, context: float, drafts: int) -> float:
    """A decode step of one sequence in an otherwise empty instance [s]."""
    dies = npus * DIES_PER_NPU
    groups = cost.decode.parallelism.groups(dies)
    return float(cost.decode_step_s(DecodeLoad(1, max(1.0, context), 1 / groups, dies, drafts)))


def share_within(times: NDArray[np.float64], limit_s: float) -> float:
    """Share of requests within a limit."""
    return float(np.count_nonzero(times <= limit_s)) / len(times)


def misfit(cost: CostModel, role: Role, npus: int) -> str | None:
    """Why an instance of this size is impossible; None if it is possible."""
    try:
        cost.hbm_plan(role, npus * DIES_PER_NPU)
    except SpecError as error:
        return str(error)
    return None


def least_prefills(cost: CostModel, config: ServeConfig, demand: PlanDemand, shape: Shape, target: PlanTarget) -> int:
    """Minimum number of instances that compute the prompts at their arrival rate."""
    best = prefill_tokens_per_s(cost, config, shape, demand.attended)
    needed = float(np.sort(demand.uncached)[: int(target.attainment * len(demand))].sum())
    return max(1, math.ceil(_SAFETY * needed / (demand.duration_s + target.ttft_s) / best))


def least_decodes(cost: CostModel, config: ServeConfig, demand: PlanDemand, shape: Shape, target: PlanTarget) -> int:
    """Minimum number of instances that hold the sequences' caches and generate their tokens at the required rate."""
    count = int(target.attainment * len(demand))
    gaps = np.sort(demand.output)[:count] - 1
    span_s = demand.duration_s + target.ttft_s + float(gaps.max(initial=0)) * target.tpot_s
    context = float(demand.prompt.mean())
    rate = decode_tokens_per_s(cost, config, context, shape, target)
    return max(1, math.ceil(_SAFETY * float(gaps.sum()) / span_s / rate))


def least_both(cost: CostModel, config: ServeConfig, demand: PlanDemand, both: Both, target: PlanTarget) -> int:
    """Minimum number of aggregated instances that do the prompts' and the outputs' work in the available time."""
    count = int(target.attainment * len(demand))
    gaps = np.sort(demand.output)[:count] - 1
    span_s = demand.duration_s + target.ttft_s + float(gaps.max(initial=0)) * target.tpot_s
    cost = shape_cost(cost, both[1])
    work_s = float(np.sort(demand.uncached)[:count].sum())
    work_s /= prefill_tokens_per_s(cost, config, both[0], demand.attended)
    work_s += float(gaps.sum()) * beside_prompts_s(cost, config, demand, both, target)
    return max(1, math.ceil(_SAFETY * work_s / span_s))


def beside_prompts_s(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, both: Both, target: PlanTarget
) -> float:  # fmt: skip
    """Time that an output token adds to steps of an aggregated instance, all of which have a full chunk, too [s].

    This is a lower bound: no weights are read for it. It is that of an instance with the largest batch within the TPOT
    SLO.
    """
    prompts, answers = both
    dies, simulation, divided = answers.npus * DIES_PER_NPU, config.simulation, shape_cost(cost, answers)
    parallel, drafts = divided.decode.parallelism, simulation.drafts
    context = float(demand.prompt.mean())
    most = divided.max_batch(
        target.tpot_s, context, dies=dies, drafts=drafts, acceptance=simulation.acceptance
    ) // DIES_PER_NPU  # fmt: skip
    each = max(1, min(answers.limit, most)) * parallel.attention_tp
    tokens = float(prompts.limit * prompts.npus)
    chunk = PrefillLoad(tokens, tokens * demand.attended, dies, simulation.prefill_imbalance)
    load = DecodeLoad(each, each * context, None, dies, drafts)
    added = MixedStep(divided).seconds(load, chunk) - divided.prefill_step_s(chunk)
    return float(added) / (each * parallel.groups(dies) * mtp_tokens_per_step(drafts, simulation.acceptance))


def both_per_s(cost: CostModel, config: ServeConfig, demand: PlanDemand, both: Both, target: PlanTarget) -> float:
    """Requests per second of one aggregated instance at its best, by the cost model with an ideal cache."""
    cost = shape_cost(cost, both[1])
    prompt_s = float(demand.uncached.mean()) / prefill_tokens_per_s(cost, config, both[0], demand.attended)
    answer_s = float(demand.output.mean()) * beside_prompts_s(cost, config, demand, both, target)
    return 1 / (prompt_s + answer_s)


def decode_tokens_per_s(
    cost: CostModel, config: ServeConfig, context: float, shape: Shape, target: PlanTarget
) -> float:
    """Output tokens per second of one instance with the largest batch within the TPOT SLO, by the cost model."""
    dies, divided = shape.npus * DIES_PER_NPU, shape_cost(cost, shape)
    return work_done.decode_tokens_per_s(
        divided, config, context, shape.npus, dies, shape.limit * DIES_PER_NPU, target.tpot_s
    )


def prefill_tokens_per_s(cost: CostModel, config: ServeConfig, shape: Shape, attended: float) -> float:
    """Prompt tokens per second of one instance at its best, by the cost model.

    Args:
        attended: attended tokens of each of them, from `demand.attended_by_each`.
    """
    perfect = config.simulation.expert_balance == "perfect"
    table = cost.prefill_table(dies=shape.npus * DIES_PER_NPU, perfect_balance=perfect)
    tokens = float(shape.limit * shape.npus)
    parts = {tokens, tokens / 4, min(tokens, 4096.0), min(tokens, 16384.0)}
    return max(part / float(table.seconds(part, part * attended)) for part in sorted(parts))


def batch_of(cost: CostModel, config: ServeConfig, demand: PlanDemand, npus: int, target: PlanTarget) -> int:
    """Sequences per die with which the mean request meets its TPOT, by the cost model; at least 1."""
    simulation = config.simulation
    found = cost.max_batch(
        target.tpot_s, float(demand.prompt.mean() + demand.output.mean() / 2), dies=npus * DIES_PER_NPU,
        drafts=simulation.drafts, acceptance=simulation.acceptance,
    )  # fmt: skip
    return max(1, found // DIES_PER_NPU)


# Choices that a user leaves to the search, and the batch limits that it tries by default.


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Choices that the user leaves to the search. Limits: none = chosen from the configuration and the SLOs.

    Attributes:
        attention_tp: dies of a decode instance that share their sequences; none = as configured.
        expert_dies: dies of a decode instance that hold experts only; none = as configured.
        redundant: copies of experts beyond one of each, of both pools; none = as configured.
        modes: what is offered: two pools, instances that prefill and decode, or both.
        aggregated_sizes: NPUs of instances that do both.
    """

    prefill_sizes: tuple[int, ...]
    decode_sizes: tuple[int, ...]
    budget: int
    prefill_limits: tuple[int, ...] = ()
    decode_limits: tuple[int, ...] = ()
    attention_tp: tuple[int, ...] = ()
    expert_dies: tuple[int, ...] = ()
    redundant: tuple[int, ...] = ()
    modes: tuple[ServingMode, ...] = ("disaggregated",)
    aggregated_sizes: tuple[int, ...] = ()


def prefill_limits(config: ServeConfig, wanted: SearchLimits) -> tuple[int, ...]:
    """Chunk sizes of prefill: as configured first, then a quarter: shorter steps let short prompts pass sooner."""
    configured = max(1, config.prefill.max_step_tokens // config.prefill.npus_per_instance)
    return wanted.prefill_limits or tuple(dict.fromkeys((configured, max(1, configured // 4))))


def decode_limits(
    cost: CostModel, config: ServeConfig, demand: PlanDemand, npus: int, target: PlanTarget
) -> tuple[int, ...]:
    """Batch sizes of decode: as configured first, then what the mean request's TPOT allows by the cost model."""
    configured = max(1, config.decode.max_sequences // config.decode.dies_per_instance)
    return tuple(dict.fromkeys((configured, min(configured, batch_of(cost, config, demand, npus, target)))))
