"""A plan as files: Markdown, one self-contained page, JSON for programs. The same plan gives the same bytes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from loadgen.report import numbers
from loadgen.report.chart import Axis, Limit, ScatterChart, ScatterTrace
from loadgen.report.fragments import element
from loadgen.report.page import Page, facts, render
from loadgen.report.table import html_table, markdown_table, terminal_table
from serving.terminal import make_folder, write_file
from serving.tools.planning import words
from serving.tools.planning.configuration import planned_text
from serving.tools.planning.plan import CapacityPlan, Option
from serving.version import VERSION
from serving.virtual.report.result_json import plain

SCHEMA = "cloudmatrix-plan/1"
_FOOTNOTE = (
    "Every plan in the table is a simulation of the whole workload that is named above, ended early only where so many "
    "requests had missed a limit that the rest could not mend it. Goodput: requests per second, over the time in which "
    "they arrive, that finished within every limit."
)


def write_all(plan: CapacityPlan, folder: Path) -> list[Path]:
    """Write plan.md, plan.html, plan.json and, of a plan that was searched for, plan.toml. Returns: the files.

    Raises: ConfigError if it cannot be written.
    Effects: makes the folder if there is none.
    """
    make_folder(folder)
    contents = {"plan.md": markdown(plan).encode(), "plan.html": page(plan).encode(), "plan.json": as_json(plan)}
    if text := planned_text(plan):
        contents["plan.toml"] = text.encode()
    for name, content in contents.items():
        write_file(folder / name, content)
    return [folder / name for name in contents]


def as_json(plan: CapacityPlan) -> bytes:
    """The document: fields of `CapacityPlan` but its configuration, SI units; what is not finite is null."""
    document = plain(replace(plan, config=None))
    del document["config"]
    return msgspec.json.encode({"schema": SCHEMA, **document}) + b"\n"


def markdown(plan: CapacityPlan) -> str:
    """The answer, a table, and why the others lose."""
    lines = ["# Plan", "", f"**{words.headline(plan)}**", ""]
    lines += [f"- {name}: {text}" for name, text in words.facts(plan)]
    lines += ["", *markdown_table(words.plan_table(plan)), "", words.plan_table(plan).note]
    if text := words.headroom_text(plan):
        lines += ["", text]
    for table in (words.screened_table(plan), words.losses_table(plan), words.cost_table(plan)):
        if table.rows:
            lines += ["", *markdown_table(table), "", table.note]
    lines += ["", "## Why", ""]
    for row in words.rows(plan):
        lines.append(f"- {row.cells[0]} ({row.limits}){', the best' if row.best else ''}: {row.why}")
    for table in (words.demand_table(plan), words.bounds_table(plan)):
        if table.rows:
            lines += ["", *markdown_table(table), "", table.note]
    if plan.dropped:
        lines += ["", "## Not simulated on the whole trace", ""]
        lines += [f"- {one.what}: {one.why}" for one in plan.dropped]
    return "\n".join(lines) + "\n"


def page(plan: CapacityPlan) -> str:
    """Self-contained HTML."""
    whole = Page(f"{plan.name} – plan", footnote=_FOOTNOTE)
    lead = element("p", words.headline(plan), "lead")
    whole.body += [element("h1", f"Plan: {plan.name}"), lead, facts(words.facts(plan))]
    drawn = whole.draw([chart for chart in (attainment_chart(plan), plans_chart(plan)) if chart is not None])
    whole.add("plans", "Plans", drawn, html_table(words.plan_table(plan)))
    margins = [element("p", text)] if (text := words.headroom_text(plan)) else []
    margins += [html_table(words.losses_table(plan))]
    whole.add("margins", "Headroom and losses", *margins)
    whole.add("screened", "Screened and simulated", html_table(words.screened_table(plan)))
    whole.add("costs", "Costs", html_table(words.cost_table(plan)))
    whole.add("why", "Why the others lose", html_table(words.why_table(plan), stack=True))
    whole.add("load", "Demand and bounds", html_table(words.demand_table(plan)), html_table(words.bounds_table(plan)))
    whole.add("dropped", "Not simulated on the whole trace", html_table(words.dropped_table(plan)))
    return render(whole, f"cloudmatrix {VERSION}")


# Plans as points: NPUs to the right, goodput upwards, and the Pareto front.

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


# A plan on the console: the answer, the table, why the others lose.

MOST_OTHERS = 12
"""Plans besides the best that a console shows."""


def show(plan: CapacityPlan, console: Console) -> None:
    """A console has the first of many plans.

    Effects: prints.
    """
    others = len(plan.options)
    plan = replace(
        plan,
        options=plan.options[:MOST_OTHERS],
        dropped=plan.dropped[:MOST_OTHERS],
        screened=[one for one in plan.screened if plan.best is None or one.simulated is not None][:MOST_OTHERS],
    )
    console.print(f"[bold]{escape(words.headline(plan))}[/bold]", highlight=False)
    for name, text in words.facts(plan):
        console.print(f"  [dim]{name}[/dim] {escape(text)}", highlight=False)
    console.print()
    console.print(terminal_table(words.plan_table(plan), console.width))
    if others > MOST_OTHERS:
        console.print(f"the first {MOST_OTHERS} of {others} other plans; --out and --json have all", highlight=False)
    console.print(f"[dim]{escape(words.plan_table(plan).note)}[/dim]", highlight=False)
    if text := words.headroom_text(plan):
        console.print()
        console.print(f"[bold]{escape(text)}[/bold]", highlight=False)
    for table in (words.screened_table(plan), words.losses_table(plan), words.cost_table(plan)):
        if table.rows:
            console.print()
            console.print(terminal_table(table, console.width))
            console.print(f"[dim]{escape(table.note)}[/dim]", highlight=False)
    console.print()
    for row in words.rows(plan):
        head = "what limits it" if row.best else "why not"
        text = f"[dim]{row.cells[0]} ({row.limits}), {head}:[/dim] {escape(row.why)}"
        console.print(text, highlight=False)
    for one in plan.dropped:
        console.print(f"[dim]{escape(one.what)}, not on the whole trace:[/dim] {escape(one.why)}", highlight=False)
