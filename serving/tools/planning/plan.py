"""Answer of a planner. Plain values: console, Markdown, page and JSON show them without further computation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from serving.config.serve import ServeConfig
from serving.tools.planning.bounds import Dropped
from serving.tools.planning.candidate import Candidate, SearchSpace
from serving.tools.planning.costs import PlanCost, PlanPrices
from serving.tools.planning.margins import Headroom, LossOutcome
from serving.tools.planning.verdict import PlanTarget, PlanVerdict

Question = Literal["least", "goodput", "rate", "compare"]


@dataclass(frozen=True, slots=True)
class Option:
    """A plan that was simulated on the whole trace.

    Attributes:
        cache_nodes: memory servers of its KV-cache pool.
        why: why it is not the one to take; for the best plan, what limits it.
        cost: if there are prices. name: of the configuration, where some were compared.
    """

    candidate: Candidate
    verdict: PlanVerdict
    holds: bool
    cache_nodes: int
    why: str
    cost: PlanCost | None = None
    name: str = ""

    @property
    def label(self) -> str:
        """The name of its configuration if it has one, else the split."""
        return self.name or self.candidate.label


@dataclass(frozen=True, slots=True)
class ScreenedPlan:
    """A plan that was screened on the whole trace, and simulated if it was a finalist."""

    candidate: Candidate
    screened: PlanVerdict
    simulated: PlanVerdict | None


@dataclass(frozen=True, slots=True)
class DemandFigures:
    """Load of the workload: rates over the time in which requests arrive, lengths in tokens.

    Attributes:
        uncached_tokens_per_s: of prompts that an ideal cache leaves to compute.
    """

    duration_s: float
    requests_per_s: float
    prompt_tokens_per_s: float
    uncached_tokens_per_s: float
    output_tokens_per_s: float
    mean_prompt: float
    p99_prompt: float
    mean_output: float
    p99_output: float


@dataclass(frozen=True, slots=True)
class ShapeBound:
    """One kind of instance by the cost model alone.

    Attributes:
        limit: of its batch, as `Shape.limit`. tokens_per_s: at its best. least: fewest instances that the load allows.
        division: as `Shape.division`.
        chunk: of an instance that does both, prompt tokens of a step for each NPU; its `tokens_per_s` are prompts' and
        answers' together, in the demanded ratio.
    """

    pool: str
    npus: int
    limit: int
    tokens_per_s: float
    least: int
    division: str = ""
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The result of planning.

    Attributes:
        question: `least` = fewest NPUs that suffice; `goodput` = best split of the budget; `rate` = the split that
        holds
            at the highest rate; `compare` = which of some configurations is better.
        rate: factor on the trace's rate that the plan is for.
        best: None if no plan holds; then `options` are the closest ones.
        options: runner-ups, and for each pool size the required number.
        dropped: options that were not simulated on the whole trace, and the reasons.
        demand, bounds: the demand, and the maximum rate of an instance of each kind.
        accuracy: device and engine for which the times hold, and their possible error.
        simulations: number of runs, including short ones. events: that they handled.
        load_factor: for headroom, on the workload's load; demand and other factors are of the product.
        twice: the fewest NPUs for twice the load by screening; None = not asked, or none holds.
        screened: plans that were screened on the whole trace, in the order of the question; none = no screening.
        headroom, losses: margins of the best plan, if requested.
        prices: the user's, if given.
        closed: the load is a closed loop, of which factors scale the concurrency.
        config: of the best plan; None where configurations were compared, or no plan holds.
    """

    question: Question
    name: str
    workload: str
    target: PlanTarget
    budget: int
    rate: float
    requests: int
    best: Option | None
    options: list[Option]
    dropped: list[Dropped]
    demand: DemandFigures
    bounds: list[ShapeBound]
    simulations: int
    events: int
    quick: bool
    accuracy: str = ""
    headroom: Headroom | None = None
    losses: list[LossOutcome] = field(default_factory=list)
    prices: PlanPrices | None = None
    config: ServeConfig | None = None
    closed: bool = False
    screened: list[ScreenedPlan] = field(default_factory=list)
    load_factor: float = 1.0
    twice: Candidate | None = None


# Comparison of plans: one order for each question, stated in the result. Pure.

_LATENCY = "latency (TTFT p99 or TPOT p99, whichever is nearer to its limit, in whole percents of it)"
ORDERS: dict[Question, str] = {
    "least": f"those that hold first, by NPUs, then by attainment, then by {_LATENCY}",
    "goodput": f"by goodput, then by {_LATENCY}, then by NPUs",
    "compare": f"those that hold first, by NPUs, then by attainment, then by {_LATENCY}",
    "rate": f"by attainment at the highest rate, then by {_LATENCY}, then by NPUs",
}
"""For people: what makes one plan better than another, and what decides between equal ones."""

PlanKey = Callable[[Candidate, PlanVerdict], tuple[object, ...]]
"""Sorts plans, the best first. No two plans have the same key."""


def order_of(question: Question, space: SearchSpace, target: PlanTarget) -> PlanKey:
    """The order that `ORDERS` describes; ties are broken by the search space's preference of shapes."""
    if question == "least":
        return lambda one, verdict: (*need_key(one, verdict, target), space.rank(one))
    if question == "goodput":
        return lambda one, verdict: (
            -verdict.goodput_per_s, verdict.latency_percent(target), one.npus, space.rank(one)
        )  # fmt: skip
    return lambda one, verdict: (
        not verdict.holds(target), -verdict.attainment, verdict.latency_percent(target), one.npus, space.rank(one)
    )  # fmt: skip


def need_key(candidate: Candidate, verdict: PlanVerdict, target: PlanTarget) -> tuple[object, ...]:
    """Sort key: plans that hold the target come first, by NPUs; then the others, by how closely they miss it."""
    holds = verdict.holds(target)
    return (
        not holds, candidate.npus if holds else 0, -verdict.attainment, verdict.latency_percent(target), candidate.npus
    )  # fmt: skip
