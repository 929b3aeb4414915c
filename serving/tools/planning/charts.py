"""Plans as points: NPUs to the right, goodput upwards, and the Pareto front."""

from collections.abc import Callable, Sequence

from loadgen.report import numbers
from loadgen.report.chart import Axis, Limit, ScatterChart, ScatterTrace
from serving.tools.planning.plan import CapacityPlan, Option

_MARGIN = 0.06
"""Margin around the outermost points, as a share of their distance."""
_KINDS = (("holds the SLOs", "blue"), ("misses them", "grey"), ("best", "green"))


def plans_chart(plan: CapacityPlan) -> ScatterChart | None:
    """All plans of the answer as points with tooltips; None if there are none."""
    options = _options(plan)
    if not options:
        return None
    front = pareto_front(options)
    traces = [
        ScatterTrace(
            name="nothing cheaper gives more", color="grey", joined=True, steps=True, bare=True,
            xs=[float(one.candidate.npus) for one in front], ys=[one.verdict.goodput_per_s for one in front],
        )
    ]  # fmt: skip
    return ScatterChart(
        id="npus-goodput",
        title="NPUs against goodput",
        note="Requests per second within the SLOs. Up and to the left is better.",
        x=_npus_axis(options),
        y=Axis(unit="per_s"),
        traces=traces + _by_kind(plan, lambda one: one.verdict.goodput_per_s),
    )


def attainment_chart(plan: CapacityPlan) -> ScatterChart | None:
    """All plans by the share of requests within the limits, with the target share; None if none."""
    options = _options(plan)
    if not options:
        return None
    asked = Limit(name=f"asked for: {100 * plan.target.attainment:.4g} %", value=plan.target.attainment)
    return ScatterChart(
        id="npus-attainment",
        title="NPUs against attainment",
        note="Share of requests within the SLOs. Above the dotted line a plan holds.",
        x=_npus_axis(options),
        y=Axis(unit="share"),
        traces=_by_kind(plan, lambda one: one.verdict.attainment),
        limits=[asked] if plan.question != "goodput" else [],
    )


def pareto_front(options: Sequence[Option]) -> list[Option]:
    """Plans of which no other gives as much with fewer NPUs, cheapest first."""
    front: list[Option] = []
    for one in sorted(options, key=lambda one: (one.candidate.npus, -one.verdict.goodput_per_s, one.label)):
        if not front or one.verdict.goodput_per_s > front[-1].verdict.goodput_per_s:
            front.append(one)
    return front


def _options(plan: CapacityPlan) -> list[Option]:
    return ([] if plan.best is None else [plan.best]) + plan.options


def _npus_axis(options: Sequence[Option]) -> Axis:
    xs = [one.candidate.npus for one in options]
    margin = _MARGIN * (max(xs) - min(xs)) or max(1.0, 0.1 * max(xs))
    return Axis(unit="number", label="NPUs", low=max(0.0, min(xs) - margin), high=max(xs) + margin)


def _by_kind(plan: CapacityPlan, value: Callable[[Option], float]) -> list[ScatterTrace]:
    """Points by the outcome of their plans, the best one last and above the others."""
    found = []
    for name, color in _KINDS:
        members = [one for one in _options(plan) if _kind(one, plan) == name]
        if members:
            found.append(_trace(name, color, members, value, best=name == "best"))
    return found


def _kind(one: Option, plan: CapacityPlan) -> str:
    return "best" if one is plan.best else "holds the SLOs" if one.holds else "misses them"


def _trace(
    name: str, color: str, members: Sequence[Option], value: Callable[[Option], float], *, best: bool
) -> ScatterTrace:
    """Points of one kind; the best one is labelled."""
    return ScatterTrace(
        name=name, color=color, large=best,
        xs=[float(one.candidate.npus) for one in members],
        ys=[value(one) for one in members],
        labels=[f"{one.label}, {numbers.count(one.candidate.npus)} NPUs" for one in members],
        marks=[one.label for one in members] if best else [],
    )  # fmt: skip
