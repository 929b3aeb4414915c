"""From a trace and limits to a plan: feasible sizes, plans that hold, their costs, and why the others lose."""

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from hardware.cost import CostModel
from hardware.cost.trust import both_trusts, decode_trust, engine_text_of, npus_text, prefill_trust
from loadgen.report import numbers
from serving import compiled
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.tools.planning import configuration, feasible, margins
from serving.tools.planning import npu_search as least
from serving.tools.planning import npu_search as split
from serving.tools.planning.bounds import Dropped, SearchLimits, shape_cost
from serving.tools.planning.candidate import DIES_PER_NPU, Candidate
from serving.tools.planning.candidate_run import PlanSetting, measure
from serving.tools.planning.costs import PlanPrices, plan_cost
from serving.tools.planning.feasible import SearchStart
from serving.tools.planning.knowledge import Knowledge, costs_more
from serving.tools.planning.load_figures import demand_figures, shape_bounds
from serving.tools.planning.plan import CapacityPlan, DemandFigures, Option, Question, order_of
from serving.tools.planning.trace import PlanDemand, TraceChoice, demand
from serving.tools.planning.verdict import Evaluate, PlanProbe, PlanTarget, PlanVerdict
from serving.virtual.simulation import cost_model
from serving.virtual.work_done import MIXED

_QUICK_PARTS = 3
_CLOSEST = 4
"""Most generous plans that are simulated when none holds."""

Progress = Callable[[PlanProbe, PlanVerdict], None]


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """Question to the planner.

    Attributes:
        cache_nodes: memory servers; None = one on each node that a plan fills.
        quick: the busiest third of the trace represents the whole.
        headroom: find the load at which the best plan breaks each SLO. losses: simulate it with each loss.
        prices: for what each plan costs.
    """

    config: ServeConfig
    trace: TraceChoice
    target: PlanTarget
    wanted: SearchLimits
    question: Question
    cache_nodes: int | None = None
    quick: bool = False
    headroom: bool = False
    losses: bool = False
    prices: PlanPrices | None = None


def plan(order: PlanQuestion, *, processes: int = 1, progress: Progress = lambda *_: None) -> CapacityPlan:
    """Search for it.

    Args:
        processes: simulations at a time; the plan does not depend on it.
        progress: called after every simulation.
    Raises: ConfigError if no size can hold the target, or the budget is more than the supernode has; TraceError for a
        trace that cannot be read or is empty.
    """
    check(order)
    config, whole = order.config, order.trace
    if order.quick:
        whole = whole.busiest(_QUICK_PARTS)
    setting = PlanSetting(config, whole, whole.busiest(), order.target, order.cache_nodes)
    workload = whole.open()
    wanted = demand(workload, reuse=config.engine.prefix_reuse)
    cost = cost_model(config)
    begin = feasible.start(cost, config, wanted, order.wanted, order.target)
    if whole.concurrency is not None:
        begin, wanted = begin.without_floors(), replace(wanted, duration_s=math.nan)
    floors = shape_bounds(cost, config, wanted, begin, order.target)
    tally = PlanTally(progress)
    with evaluator(setting, processes, tally) as evaluate:
        search = _Search(order, setting, wanted, begin, evaluate)
        best, rate, options = search.least() if order.question == "least" else search.split()
        room = lost = None
        if best is not None and order.headroom:
            room = margins.headroom(best.candidate, rate, order.target, evaluate)
        if best is not None and order.losses:
            lost = margins.losses(best.candidate, rate, order.target, evaluate)
    figures = demand_figures(wanted)
    return CapacityPlan(
        question=order.question, name=config.model.name or config.model.path.name, workload=workload.name,
        target=order.target, budget=order.wanted.budget, rate=rate, requests=len(wanted), best=best, options=options,
        dropped=search.dropped, demand=figures, bounds=floors,
        simulations=tally.count, events=tally.events, quick=whole != order.trace,
        accuracy=plan_accuracy(cost, config, best, figures), headroom=room, losses=lost or [],
        config=None if best is None else configuration.planned(setting, best),
        prices=order.prices, closed=order.trace.concurrency is not None,
    )  # fmt: skip


def check(order: PlanQuestion) -> None:
    """Refuse invalid questions. Raises: ConfigError."""
    budget, there = order.wanted.budget, order.config.cluster.npus
    if not 1 <= budget <= there:
        raise ConfigError(f"--npus {budget}: the supernode of this configuration has {there}")
    if order.config.one_pool:
        raise ConfigError(
            "a search chooses prefill and decode pools, from a file that has them; --modes aggregated offers instances "
            'that do both, --compare holds files with [serving] mode = "aggregated" against others'
        )
    check_target(order.target)
    check_sizes(order.wanted)
    check_loop(order.trace, losses=order.losses)
    if order.config.simulation.supernodes > 1:
        raise ConfigError("a plan is for one supernode: set [simulation] supernodes to 1 and plan for its share")


def check_sizes(wanted: SearchLimits) -> None:
    """Refuse pools that no size is offered for. Raises: ConfigError."""
    offered = [wanted.prefill_sizes, wanted.decode_sizes] if "disaggregated" in wanted.modes else []
    offered += [wanted.aggregated_sizes] if "aggregated" in wanted.modes else []
    if not offered or not all(sizes and min(sizes) >= 1 for sizes in offered):
        raise ConfigError("each pool needs at least one size, and every size at least 1 NPU")


def check_loop(trace: TraceChoice, *, losses: bool) -> None:
    """Refuse options without meaning for a closed loop. Raises: ConfigError."""
    if trace.concurrency is None:
        return
    if trace.concurrency < 1:
        raise ConfigError(f"--concurrency {trace.concurrency}: at least 1")
    if trace.rate != 1:
        raise ConfigError("--rate is for an open loop; with --concurrency it has no effect")
    if losses:
        raise ConfigError("--losses is for an open loop: a closed one has no busiest minute")


def check_target(target: PlanTarget) -> None:
    """Refuse limits that cannot be. Raises: ConfigError."""
    if not (target.ttft_s > 0 and target.tpot_s > 0 and 0 < target.attainment <= 1):
        raise ConfigError(
            f"TTFT {target.ttft_s:g} s, TPOT {target.tpot_s:g} s, attainment {target.attainment:g}: limits are above "
            f"0, attainment is above 0 and at most 1"
        )


class PlanTally:
    """Counts simulations."""

    def __init__(self, progress: Progress) -> None:
        self.count = 0
        self.events = 0
        self._progress = progress

    def __call__(self, probe: PlanProbe, verdict: PlanVerdict) -> None:
        self.count += 1
        self.events += verdict.events
        self._progress(probe, verdict)


Answer = tuple[Option | None, float, list[Option]]


class _Search:
    """One question on its way to its answer."""

    def __init__(
        self, order: PlanQuestion, setting: PlanSetting, wanted: PlanDemand, begin: SearchStart, evaluate: Evaluate
    ) -> None:
        self._order = order
        self._setting = setting
        self._wanted = wanted
        self._begin = begin
        self._evaluate = evaluate
        self.dropped = list(begin.dropped)

    def least(self) -> Answer:
        """The fewest NPUs that hold."""
        begin = self._begin
        known = Knowledge(begin.space, self._order.target, begin.prefill, begin.decode, begin.both)
        best = least.find_least(known, self._evaluate)
        if best is not None:
            least.runner_ups(known, best, self._evaluate)
            best = least.settled(known, self._evaluate)
        if best is None:
            closest = [one for one in least.most_generous(known.space)[:_CLOSEST] if one not in known.tried]
            for one, verdict in zip(closest, self._evaluate([PlanProbe(one) for one in closest]), strict=True):
                known.learn(one, verdict)
        self._drop_floors(known)
        return self._answer(best, 1.0, known.tried, known.reason)

    def split(self) -> Answer:
        """The best use of the budget."""
        order, space = self._order, self._begin.space
        cost = cost_model(order.config)

        def capacity(one: Candidate) -> float:
            return feasible.capacity_per_s(cost, order.config, self._wanted, order.target, one)

        rate = 1.0
        if order.question == "goodput":
            best, tried = split.best_split(space, capacity, self._evaluate, order.target)
        else:
            best, rate, tried = split.highest_rate(space, capacity, self._evaluate, order.target)
        return self._answer(best, rate, tried, lambda one: _loses(one, best, tried, order.target))

    def _answer(
        self,
        best: Candidate | None,
        rate: float,
        tried: dict[Candidate, PlanVerdict],
        reason: Callable[[Candidate], str],
    ) -> Answer:
        target = self._order.target

        def option(one: Candidate) -> Option:
            verdict = tried[one]
            servers = one.nodes if self._setting.cache_nodes is None else self._setting.cache_nodes
            why = verdict.why if one == best else reason(one)
            prices = self._order.prices
            cost = None if prices is None else plan_cost(one, verdict, prices)
            return Option(one, verdict, verdict.holds(target), servers, why, cost)

        key = order_of(self._order.question, self._begin.space, target)
        others = [option(one) for one in sorted(tried, key=lambda one: key(one, tried[one])) if one != best]
        return (None if best is None else option(best)), rate, others

    def _drop_floors(self, known: Knowledge) -> None:
        """Record for each shape how many instances are too few: those plans were not simulated."""
        units = {"prefill": "tokens/NPU", "decode": "sequences/die"}
        for pool, floors in (("prefill", known.prefill), ("decode", known.decode)):
            for shape, floor in floors.items():
                if floor.least > 1:
                    limit = f"{shape.limit:,} {units[pool]}"
                    what = f"{pool} at {limit}: {floor.least - 1} x {shape.npus} NPUs{shape.division} or fewer"
                    self.dropped.append(Dropped(what, floor.why))
        for both, floor in known.both.items():
            if floor.least > 1:
                fewer = Candidate(both[0], 0, both[1], floor.least - 1)
                self.dropped.append(Dropped(f"{fewer.label} at {fewer.limits}, or fewer", floor.why))


def _loses(
    one: Candidate, best: Candidate | None, tried: dict[Candidate, PlanVerdict], target: PlanTarget
) -> str:  # fmt: skip
    """Why a split is not the best one."""
    if best is None:
        return tried[one].why
    behind = tried[best].goodput_per_s - tried[one].goodput_per_s
    if behind > 0:
        return f"{numbers.significant(behind)} good requests/s fewer: {tried[one].why}"
    slower, quicker = (tried[each].latency_percent(target) for each in (one, best))
    if slower > quicker:
        return f"as good as {best.label}, but latency is at {slower:.0f} % of its limit, not at {quicker:.0f} %"
    return costs_more(one, best) if one.npus > best.npus else f"no better than {best.label}"


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


# Concurrent simulations in processes; results do not depend on their number.

Tell = Callable[[PlanProbe, PlanVerdict], None]
"""Called with each finished simulation, in the order of the requests."""


@contextmanager
def evaluator(setting: PlanSetting, processes: int, tell: Tell) -> Iterator[Evaluate]:
    """Evaluator for a search. Each probe is simulated once: the same question gets the same result.

    Args:
        processes: 1 = none but this one.
    Effects: processes while it is open; they are started fresh, so that no thread or lock is inherited.
    """
    answers: dict[PlanProbe, PlanVerdict] = {}
    if processes == 1:
        yield partial(_evaluate, answers, tell, lambda probes: (measure(setting, one) for one in probes))
        return
    context = multiprocessing.get_context("spawn")
    begin, folder = compiled.begin_worker, compiled.in_use()
    with ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=(folder,)) as pool:
        yield partial(_evaluate, answers, tell, lambda probes: pool.map(partial(measure, setting), probes))


def _evaluate(
    answers: dict[PlanProbe, PlanVerdict],
    tell: Tell,
    run: Callable[[Sequence[PlanProbe]], Iterator[PlanVerdict]],
    probes: Sequence[PlanProbe],
) -> list[PlanVerdict]:
    new = [one for one in dict.fromkeys(probes) if one not in answers]
    for probe, verdict in zip(new, run(new), strict=True):
        answers[probe] = verdict
        tell(probe, verdict)
    return [answers[one] for one in probes]
