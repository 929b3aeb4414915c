"""Choices that a user leaves to the search, and the batch limits that it tries by default."""

from dataclasses import dataclass

from hardware.cost import CostModel
from serving.config.engine import ServingMode
from serving.config.serve import ServeConfig
from serving.tools.planning import bounds
from serving.tools.planning.demand import PlanDemand
from serving.tools.planning.verdict import PlanTarget


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
    return tuple(dict.fromkeys((configured, min(configured, bounds.batch_of(cost, config, demand, npus, target)))))
