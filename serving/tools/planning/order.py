"""Comparison of plans: one order for each question, stated in the result. Pure."""

from collections.abc import Callable

from serving.tools.planning.candidate import Candidate, SearchSpace
from serving.tools.planning.plan import Question
from serving.tools.planning.verdict import PlanTarget, PlanVerdict

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
    """The order that `ORDERS` names; what is still equal follows the preference of shapes."""
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
    """Sorts those that hold by the NPUs that they need, and behind them the others, the closest first."""
    holds = verdict.holds(target)
    return (
        not holds, candidate.npus if holds else 0, -verdict.attainment, verdict.latency_percent(target), candidate.npus
    )  # fmt: skip
