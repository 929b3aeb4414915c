"""A plan in words and rows: what the console, Markdown and the page show alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.sim.planning.bounds import Dropped
from serving.sim.planning.plan import Option, Plan
from serving.sim.report import numbers
from serving.sim.report.plots import Candidate as Point
from serving.sim.report.plots import pareto

HEADS = (
    "prefill + decode", "tokens/NPU", "batch/die", "NPUs", "servers", "TTFT p99", "TPOT p99", "attained", "goodput/s",
    "hit rate", "verdict",
)  # fmt: skip
LEGEND = (
    "prefill + decode: instances x NPUs of each. tokens/NPU: limit of a prefill step. batch/die: limit of sequences on "
    "a decode die. servers: memory servers of the KV-cache pool."
)
TITLE = "NPUs against goodput"


@dataclass(frozen=True, slots=True)
class Row:
    """One plan as text; `cells` as `HEADS`."""

    cells: tuple[str, ...]
    limits: str
    why: str
    best: bool
    holds: bool


def headline(plan: Plan) -> str:
    """The answer in one sentence."""
    best, target = plan.best, plan.target.text
    if best is None:
        return f"No plan with up to {plan.budget} NPUs keeps {target}."
    split, npus = best.candidate.label, best.candidate.npus
    cache = f"{best.cache_nodes} memory servers"
    if plan.question == "least":
        return f"{npus} NPUs are the fewest that keep {target}: {split} (prefill + decode), {cache}."
    if plan.question == "rate":
        rate = f"{plan.rate:.3g} x the given rate"
        return f"{split} (prefill + decode, {npus} NPUs), {cache}, keeps {target} up to {rate}."
    share = numbers.share(best.verdict.attainment)
    return (
        f"{split} (prefill + decode, {npus} NPUs), {cache}, gives the highest goodput: "
        f"{numbers.figure(best.verdict.goodput_per_s)} requests/s, {share} of all."
    )


def facts(plan: Plan) -> list[tuple[str, str]]:
    """What was asked, and what it took."""
    found = [
        ("model", plan.name),
        ("workload", plan.workload),
        ("requests", numbers.count(plan.requests)),
        ("to keep", plan.target.text),
        ("NPUs at most", numbers.count(plan.budget)),
        ("simulations", numbers.count(plan.simulations)),
    ]
    return found + ([("quick", "the busiest third of the trace stands for the whole")] if plan.quick else [])


def rows(plan: Plan) -> list[Row]:
    """The best plan first, then the others, cheapest first."""
    best = [] if plan.best is None else [_row(plan.best, best=True)]
    return best + [_row(one, best=False) for one in plan.options]


def dropped(plan: Plan) -> Sequence[Dropped]:
    """What was not simulated on the whole trace."""
    return plan.dropped


def plot(plan: Plan) -> str:
    """Plans as points, as SVG."""
    options = ([] if plan.best is None else [plan.best]) + plan.options
    points = [
        Point(
            label=one.candidate.label, npus=one.candidate.npus, goodput_per_s=one.verdict.goodput_per_s,
            holds=one.holds, best=one is plan.best,
        )
        for one in options
    ]  # fmt: skip
    return pareto("plans", TITLE, points)


def _row(one: Option, *, best: bool) -> Row:
    verdict, candidate = one.verdict, one.candidate
    word = "best" if best else "holds" if one.holds else "misses"
    cells = (
        candidate.label, numbers.count(candidate.prefill.limit), numbers.count(candidate.decode.limit),
        numbers.count(candidate.npus), numbers.count(one.cache_nodes),
        numbers.duration(verdict.ttft_p99_s), numbers.duration(verdict.tpot_p99_s), numbers.share(verdict.attainment),
        numbers.figure(verdict.goodput_per_s), numbers.share(verdict.hit_share), word,
    )  # fmt: skip
    return Row(cells, candidate.limits, one.why, best, one.holds)
