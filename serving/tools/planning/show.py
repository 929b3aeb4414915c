"""A plan on the console: the answer, the table, why the others lose."""

from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from loadgen.report.table import terminal_table
from serving.tools.planning import words
from serving.tools.planning.plan import CapacityPlan

MOST_OTHERS = 12
"""Plans besides the best that a console shows."""


def show(plan: CapacityPlan, console: Console) -> None:
    """A console has the first of many plans.

    Effects: prints.
    """
    others = len(plan.options)
    plan = replace(plan, options=plan.options[:MOST_OTHERS], dropped=plan.dropped[:MOST_OTHERS])
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
    for table in (words.losses_table(plan), words.cost_table(plan)):
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
