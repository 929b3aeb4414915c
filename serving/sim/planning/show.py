"""A plan on the console: the answer, the table, why the others lose."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serving.sim.planning import words
from serving.sim.planning.plan import Plan


def show(plan: Plan, console: Console) -> None:
    """Effects: prints."""
    console.print(f"[bold]{escape(words.headline(plan))}[/bold]", highlight=False)
    for name, text in words.facts(plan):
        console.print(f"  [dim]{name}[/dim] {escape(text)}", highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for place, head in enumerate(words.HEADS):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    rows = words.rows(plan)
    for row in rows:
        style = "green" if row.best else None if row.holds else "dim"
        table.add_row(*row.cells, style=style)
    console.print()
    console.print(table)
    console.print(f"[dim]{words.LEGEND}[/dim]", highlight=False)
    console.print()
    for row in rows:
        head = "what limits it" if row.best else "why not"
        text = f"[dim]{row.cells[0]} ({row.limits}), {head}:[/dim] {escape(row.why)}"
        console.print(text, highlight=False)
    for one in words.dropped(plan):
        console.print(f"[dim]{escape(one.what)}, not on the whole trace:[/dim] {escape(one.why)}", highlight=False)
