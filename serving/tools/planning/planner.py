"""From a trace and limits to a plan: feasible sizes, plans that hold, their costs, and why the others lose."""

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from loadgen.report import numbers
from serving import compiled
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.tools.planning import configuration, feasible, margins
from serving.tools.planning import npu_search as least
from serving.tools.planning import npu_search as split
from serving.tools.planning.bounds import Dropped, SearchLimits
from serving.tools.planning.candidate import Candidate
from serving.tools.planning.candidate_run import PlanSetting, measure
from serving.tools.planning.costs import PlanPrices, plan_cost
from serving.tools.planning.feasible import SearchStart
from serving.tools.planning.knowledge import Knowledge, costs_more, raise_floor
from serving.tools.planning.load_figures import demand_figures, plan_accuracy, shape_bounds
from serving.tools.planning.plan import CapacityPlan, Option, Question, ScreenedPlan, order_of
from serving.tools.planning.screening import Screen, can_screen, fewest_screened
from serving.tools.planning.trace import PlanDemand, TraceChoice, demand, opened
from serving.tools.planning.verdict import Evaluate, PlanProbe, PlanTarget, PlanVerdict
from serving.virtual.simulation import cost_model

_QUICK_PARTS = 3
_CLOSEST = 4
"""Most generous plans that are simulated when none holds."""
_CLOSEST_SCREENED = 1

Progress = Callable[[PlanProbe, PlanVerdict], None]


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """Question to the planner.

    Attributes:
        cache_nodes: memory servers; None = one on each node that a plan fills.
        quick: the busiest third of the trace represents the whole.
        headroom: find the load at which the best plan breaks each SLO. losses: simulate it with each loss.
        load_factor: the plan is for so many times the load: arrivals per second, or requests of a closed loop.
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
    load_factor: float = 1.0
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
    config, loaded = order.config, order.trace.faster(order.load_factor)
    whole = loaded
    if order.quick:
        whole = whole.busiest(_QUICK_PARTS)
    setting = PlanSetting(config, whole, whole.busiest(), order.target, order.cache_nodes)
    workload = opened(whole)[0]
    wanted = demand(workload, reuse=config.engine.prefix_reuse)
    cost = cost_model(config)
    begin = feasible.start(cost, config, wanted, order.wanted, order.target)
    if whole.concurrency is not None:
        begin, wanted = begin.without_floors(), replace(wanted, duration_s=math.nan)
    floors = shape_bounds(cost, config, wanted, begin, order.target)
    tally = PlanTally(progress)
    with evaluator(setting, processes, tally) as evaluate:
        screen = screener(setting, evaluate, progress)
        search = _Search(order, setting, wanted, begin, evaluate, screen)
        best, rate, options = search.least() if order.question == "least" else search.split()
        room = lost = None
        if best is not None and order.headroom:
            room = margins.headroom(best.candidate, rate, order.target, evaluate, screen)
        if best is not None and order.losses:
            lost = margins.losses(best.candidate, rate, order.target, evaluate)
    figures = demand_figures(wanted)
    return CapacityPlan(
        question=order.question, name=config.model.name or config.model.path.name, workload=workload.name,
        target=order.target, budget=order.wanted.budget, rate=rate, requests=len(wanted), best=best, options=options,
        dropped=search.dropped, demand=figures, bounds=floors,
        simulations=tally.count, events=tally.events, quick=whole != loaded,
        accuracy=plan_accuracy(cost, config, best, figures), headroom=room, losses=lost or [],
        config=None if best is None else configuration.planned(setting, best),
        prices=order.prices, closed=order.trace.concurrency is not None, screened=search.screened(),
        load_factor=order.load_factor, twice=_twice(order, setting, best),
    )  # fmt: skip


def _twice(order: PlanQuestion, setting: PlanSetting, best: Option | None) -> Candidate | None:
    """The reserve that most services have, priced where the answer has none."""
    bare = order.question == "least" and order.load_factor == 1
    if not bare or best is None or best.candidate.one_pool or not can_screen(setting):
        return None
    return fewest_screened(setting, order.wanted, 2.0)


def check(order: PlanQuestion) -> None:
    """Refuse invalid questions; no trace is read for that. Raises: ConfigError."""
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
    feasible.check_memory(cost_model(order.config), order.config, order.wanted, order.target)


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
        self, order: PlanQuestion, setting: PlanSetting, wanted: PlanDemand, begin: SearchStart, evaluate: Evaluate,
        screen: Evaluate | None,
    ) -> None:  # fmt: skip
        self._order = order
        self._setting = setting
        self._wanted = wanted
        self._begin = begin
        self._evaluate = evaluate
        self._screen = screen
        self._screened: dict[Candidate, PlanVerdict] = {}
        self._tried: dict[Candidate, PlanVerdict] = {}
        self.dropped = list(begin.dropped)

    def least(self) -> Answer:
        """The fewest NPUs that hold."""
        known = self._nothing_known()
        first = self._screening()
        best = None if first is None else least.confirm(known, first, self._evaluate)
        if best is None and (first is None or first.best is not None):
            best = least.find_least(known, self._evaluate)
            if best is not None:
                least.runner_ups(known, best, self._evaluate)
                best = least.settled(known, self._evaluate)
        if best is None:
            closest = self._closest(known, first)
            for one, verdict in zip(closest, self._evaluate([PlanProbe(one) for one in closest]), strict=True):
                known.learn(one, verdict)
            if known.best is not None:  # screening found none
                best = least.find_least(known, self._evaluate)
        self._drop_floors(known, first or known, best)
        return self._answer(best, 1.0, known.tried, known.reason)

    def _closest(self, known: Knowledge, first: Knowledge | None) -> list[Candidate]:
        """Plans to simulate when none holds: after screening only the one that came closest in it."""
        generous = least.most_generous(known.space)
        if first is None or self._screen is None:
            return [one for one in generous[:_CLOSEST] if one not in known.tried]
        verdicts = dict(zip(generous, self._screen([PlanProbe(one) for one in generous]), strict=True)) | first.tried
        self._screened = verdicts
        key = order_of("least", known.space, known.target)
        # Whose TTFT was lost was not decoded, so nothing is known of its TPOT.
        ranked = sorted(verdicts, key=lambda one: (math.isnan(verdicts[one].tpot_p99_s), *key(one, verdicts[one])))
        return [one for one in ranked[:_CLOSEST_SCREENED] if one not in known.tried]

    def _nothing_known(self) -> Knowledge:
        begin = self._begin
        return Knowledge(begin.space, self._order.target, begin.prefill, begin.decode, begin.both)

    def _screening(self) -> Knowledge | None:
        """The search by screening alone; None if the load cannot be screened."""
        if self._screen is None:
            return None
        first = self._nothing_known()
        best = least.find_least(first, self._screen)
        if best is not None:
            least.runner_ups(first, best, self._screen)
        self._screened = first.tried
        return first

    def screened(self) -> list[ScreenedPlan]:
        """Plans that were screened, with their simulations."""
        key = order_of(self._order.question, self._begin.space, self._order.target)
        ranked = sorted(self._screened, key=lambda one: key(one, self._screened[one]))
        return [ScreenedPlan(one, self._screened[one], self._tried.get(one)) for one in ranked if not one.one_pool]

    def split(self) -> Answer:
        """The best use of the budget."""
        order, space = self._order, self._begin.space
        cost = cost_model(order.config)

        def capacity(one: Candidate) -> float:
            return feasible.capacity_per_s(cost, order.config, self._wanted, order.target, one)

        rate = 1.0
        if order.question == "goodput":
            best, tried = split.best_split(space, capacity, self._evaluate, order.target, self._screen)
        else:
            best, rate, tried = split.highest_rate(space, capacity, self._evaluate, order.target, self._screen)
        if self._screen is not None:
            probes = [PlanProbe(one, rate=rate) for one in tried]
            self._screened = dict(zip(tried, self._screen(probes), strict=True))
        return self._answer(best, rate, tried, lambda one: _loses(one, best, tried, order.target))

    def _answer(
        self,
        best: Candidate | None,
        rate: float,
        tried: dict[Candidate, PlanVerdict],
        reason: Callable[[Candidate], str],
    ) -> Answer:
        target = self._order.target
        self._tried = tried

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

    def _drop_floors(self, known: Knowledge, first: Knowledge, best: Candidate | None) -> None:
        """Record for each shape how many instances are too few: those plans were not simulated.

        Args:
            first: what screening found. A floor of it that is above the best plan is not one.
        """
        for floors, others in ((known.prefill, first.prefill), (known.decode, first.decode)):
            for shape, floor in others.items():
                there = 0 if best is None else {best.prefill: best.prefills, best.decode: best.decodes}.get(shape, 0)
                if not there or floor.least <= there:
                    raise_floor(floors, shape, floor.least, floor.why)
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


# Concurrent simulations in processes; results do not depend on their number.

_WORTH_PROCESSES = 2000
"""Requests of a trace from which on simulations in other processes take less time than to start those."""

Tell = Callable[[PlanProbe, PlanVerdict], None]
"""Called with each finished simulation, in the order of the requests."""


def screener(setting: PlanSetting, evaluate: Evaluate, progress: Progress) -> Evaluate | None:
    """Evaluator by screening; of plans with one pool, by simulation. None if the load cannot be screened."""
    if not can_screen(setting):
        return None
    screen = Screen(setting)
    answers: dict[PlanProbe, PlanVerdict] = {}

    def run(probes: Sequence[PlanProbe]) -> Iterator[PlanVerdict]:
        return (evaluate([one])[0] if one.candidate.one_pool else screen(one) for one in probes)

    return partial(_evaluate, answers, progress, run)


@contextmanager
def evaluator(setting: PlanSetting, processes: int, tell: Tell) -> Iterator[Evaluate]:
    """Evaluator for a search. Each probe is simulated once: the same question gets the same result.

    Args:
        processes: 1 = none but this one.
    Effects: processes while it is open; they are started fresh, so that no thread or lock is inherited.
    """
    answers: dict[PlanProbe, PlanVerdict] = {}
    with ExitStack() as stack:
        pools: list[ProcessPoolExecutor] = []

        def run(probes: Sequence[PlanProbe]) -> Iterator[PlanVerdict]:
            if processes == 1 or len(probes) < 2 or opened(setting.trace)[1].requests < _WORTH_PROCESSES:
                return (measure(setting, one) for one in probes)
            if not pools:
                context = multiprocessing.get_context("spawn")
                begin, folder = compiled.begin_worker, compiled.in_use()
                pool = ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=(folder,))
                pools.append(stack.enter_context(pool))
            return pools[0].map(partial(measure, setting), probes)

        yield partial(_evaluate, answers, tell, run)


def _evaluate(
    answers: dict[PlanProbe, PlanVerdict],
    tell: Tell,
    run: Callable[[Sequence[PlanProbe]], Iterator[PlanVerdict]],
    probes: Sequence[PlanProbe],
) -> list[PlanVerdict]:
    new = [one for one in dict.fromkeys(probes) if one not in answers]
    for probe, verdict in zip(new, run(new), strict=True):
        answers[probe] = verdict
        if verdict.stopped_s is None:  # the run to its end is the same
            answers[replace(probe, may_stop=False)] = verdict
        tell(probe, verdict)
    return [answers[one] for one in probes]
