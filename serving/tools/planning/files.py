"""A plan as files: Markdown, one self-contained page, JSON for programs. The same plan gives the same bytes."""

from dataclasses import replace
from pathlib import Path

import msgspec

from loadgen.report.fragments import element
from loadgen.report.html import render
from loadgen.report.page import Page, facts
from loadgen.report.table import html_table, markdown_table
from serving.report_files import make_folder, write_file
from serving.tools.planning import words
from serving.tools.planning.charts import attainment_chart, plans_chart
from serving.tools.planning.configuration import planned_text
from serving.tools.planning.plan import CapacityPlan
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
    for table in (words.losses_table(plan), words.cost_table(plan)):
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
    whole.add("costs", "Costs", html_table(words.cost_table(plan)))
    whole.add("why", "Why the others lose", html_table(words.why_table(plan), stack=True))
    whole.add("load", "Demand and bounds", html_table(words.demand_table(plan)), html_table(words.bounds_table(plan)))
    whole.add("dropped", "Not simulated on the whole trace", html_table(words.dropped_table(plan)))
    return render(whole, f"cloudmatrix {VERSION}")
