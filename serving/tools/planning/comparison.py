"""Configurations against each other on one trace, each simulated as it is."""

import math
from dataclasses import dataclass, replace

from serving.config.rank_checks import roles_as_dies
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.tools.planning import margins
from serving.tools.planning.candidate import DIES_PER_NPU, Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting
from serving.tools.planning.costs import PlanPrices, plan_cost
from serving.tools.planning.load_figures import demand_figures, plan_accuracy
from serving.tools.planning.plan import CapacityPlan, Option, need_key
from serving.tools.planning.planner import PlanTally, Progress, check_loop, check_target, evaluator
from serving.tools.planning.trace import TraceChoice, demand
from serving.tools.planning.verdict import PlanProbe, PlanTarget
from serving.virtual.simulation import cost_model
from serving.virtual.work_done import answers_pool, prompts_pool


@dataclass(frozen=True, slots=True)
class ComparisonQuestion:
    """Question which of some configurations is better.

    Attributes:
        configs: with their names.
        headroom, losses, prices: as `PlanQuestion`.
    """

    configs: tuple[tuple[str, ServeConfig], ...]
    trace: TraceChoice
    target: PlanTarget
    headroom: bool = False
    losses: bool = False
    prices: PlanPrices | None = None


def compare(order: ComparisonQuestion, *, processes: int = 1, progress: Progress = lambda *_: None) -> CapacityPlan:
    """Simulate every configuration on the whole trace.

    Raises: ConfigError for limits that cannot be and pools that change their size; TraceError for a bad trace.
    """
    check_target(order.target)
    check_loop(order.trace, losses=order.losses)
    first = order.configs[0][1]
    workload = order.trace.open()
    wanted = demand(workload, reuse=first.engine.prefix_reuse)
    if order.trace.concurrency is not None:
        wanted = replace(wanted, duration_s=math.nan)
    tally = PlanTally(progress)
    configs = [(name, roles_as_dies(config)) for name, config in order.configs]
    settings = [_setting(order, name, config) for name, config in configs]
    found = []
    for (name, config), setting in zip(configs, settings, strict=True):
        candidate = split_of(config)
        with evaluator(setting, 1, tally) as evaluate:
            (verdict,) = evaluate([PlanProbe(candidate)])
        cost = None if order.prices is None else plan_cost(candidate, verdict, order.prices)
        holds = verdict.holds(order.target)
        found.append(Option(candidate, verdict, holds, config.kvcache.replicas, verdict.why, cost, name))
    ranked = sorted(
        range(len(found)), key=lambda place: need_key(found[place].candidate, found[place].verdict, order.target)
    )
    best, others = found[ranked[0]], [found[place] for place in ranked[1:]]
    room, lost = None, []
    with evaluator(settings[ranked[0]], processes, tally) as evaluate:
        if order.headroom:
            room = margins.headroom(best.candidate, 1.0, order.target, evaluate)
        if order.losses:
            lost = margins.losses(best.candidate, 1.0, order.target, evaluate)
    figures, chosen = demand_figures(wanted), configs[ranked[0]][1]
    return CapacityPlan(
        question="compare", name=" and ".join(dict.fromkeys(config.model.name for _, config in order.configs)),
        workload=workload.name, target=order.target, budget=max(one.candidate.npus for one in found), rate=1.0,
        requests=len(wanted), best=best, options=[replace(one, why=_why(one, best)) for one in others], dropped=[],
        demand=figures, bounds=[], simulations=tally.count, events=tally.events, quick=False,
        accuracy=plan_accuracy(cost_model(chosen), chosen, best, figures),
        headroom=room, losses=lost, prices=order.prices,
        closed=order.trace.concurrency is not None,
    )  # fmt: skip


def split_of(config: ServeConfig) -> Candidate:
    """The pools of a configuration as a split; limits are rounded down."""
    prefill, decode = prompts_pool(config), answers_pool(config)
    return Candidate(
        Shape(prefill.npus_per_instance, max(1, prefill.max_step_tokens // prefill.npus_per_instance)),
        0 if config.one_pool else prefill.replicas,
        Shape(
            decode.npus_per_instance,
            max(1, decode.max_sequences // (decode.npus_per_instance * DIES_PER_NPU)),
            config.simulation.decode_attention_tp,
            config.simulation.expert_dies,
            config.experts.redundant if config.simulation.routing else config.simulation.redundant_experts,
        ),
        decode.replicas,
    )


def _setting(order: ComparisonQuestion, name: str, config: ServeConfig) -> PlanSetting:
    """Raises: ConfigError."""
    if config.autoscaler.policy != "none":
        raise ConfigError(
            f'{name}: [autoscaler] policy = "{config.autoscaler.policy}": `plan` compares pools that keep their size; '
            f"use `cloudmatrix simulate --out` for each and `cloudmatrix compare`"
        )
    if not all(pool.replicas for pool in config.pools.values()):
        raise ConfigError(f"{name}: a plan has instances of every pool from the start")
    if config.simulation.supernodes > 1:
        raise ConfigError(f"{name}: a plan is for one supernode: set [simulation] supernodes to 1")
    return PlanSetting(config, order.trace, order.trace, order.target, config.kvcache.replicas, as_given=True)


def _why(one: Option, best: Option) -> str:
    """Why a configuration is behind the best one."""
    if not one.holds:
        return one.why
    more = one.candidate.npus - best.candidate.npus
    return f"holds, with {more} NPUs more than {best.name}" if more else f"holds no better than {best.name}"
