"""Plans as points: NPUs to the right, goodput upwards, and the front of those that nothing beats."""

from collections.abc import Sequence

from loadgen.report import numbers
from loadgen.report.chart import Axis, ScatterChart, ScatterTrace
from serving.tools.planning.plan import CapacityPlan, Option

_MARGIN = 0.06
"""Room beside the outermost points, of their distance."""
_KINDS = (("holds the SLOs", "blue"), ("misses them", "grey"), ("best", "green"))


def plans_chart(plan: CapacityPlan) -> ScatterChart | None:
    """Every plan of the answer as a point that says what it is; None if there are none."""
    options = ([] if plan.best is None else [plan.best]) + plan.options
    if not options:
        return None
    front = pareto_front(options)
    traces = [
        ScatterTrace(
            name="nothing cheaper gives more", color="grey", joined=True, steps=True, bare=True,
            xs=[float(one.candidate.npus) for one in front], ys=[one.verdict.goodput_per_s for one in front],
        )
    ]  # fmt: skip
    for name, color in _KINDS:
        members = [one for one in options if _kind(one, plan) == name]
        if members:
            traces.append(_trace(name, color, members, best=name == "best"))
    xs = [one.candidate.npus for one in options]
    margin = _MARGIN * (max(xs) - min(xs)) or max(1.0, 0.1 * max(xs))
    return ScatterChart(
        id="npus-goodput",
        title="NPUs against goodput",
        note="Requests per second within the SLOs. Up and to the left is better.",
        x=Axis(unit="number", label="NPUs", low=max(0.0, min(xs) - margin), high=max(xs) + margin),
        y=Axis(unit="per_s"),
        traces=traces,
    )


def pareto_front(options: Sequence[Option]) -> list[Option]:
    """Plans of which no other gives as much with fewer NPUs, cheapest first."""
    front: list[Option] = []
    for one in sorted(options, key=lambda one: (one.candidate.npus, -one.verdict.goodput_per_s, one.candidate.label)):
        if not front or one.verdict.goodput_per_s > front[-1].verdict.goodput_per_s:
            front.append(one)
    return front


def _kind(one: Option, plan: CapacityPlan) -> str:
    return "best" if one is plan.best else "holds the SLOs" if one.holds else "misses them"


def _trace(name: str, color: str, members: Sequence[Option], *, best: bool) -> ScatterTrace:
    """Points of one kind; the best one has its name beside it."""
    return ScatterTrace(
        name=name, color=color, large=best,
        xs=[float(one.candidate.npus) for one in members],
        ys=[one.verdict.goodput_per_s for one in members],
        labels=[f"{one.candidate.label}, {numbers.count(one.candidate.npus)} NPUs" for one in members],
        marks=[one.candidate.label for one in members] if best else [],
    )  # fmt: skip
