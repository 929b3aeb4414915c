"""A comparison in a terminal: differing settings, figures, warnings."""

from rich.console import Console
from rich.text import Text

from loadgen.report.table import terminal_table
from serving.virtual.comparison import tables
from serving.virtual.comparison.comparison import SimulationComparison


def print_comparison(compared: SimulationComparison, console: Console) -> None:
    """Print a comparison."""
    console.print(Text(f"{compared.other.path} against {compared.baseline.path}", style="bold"), soft_wrap=True)
    for name, left, right in compared.settings:
        console.print(Text(f"  {name}: {left or 'none'} → {right or 'none'}"), soft_wrap=True)
    if not compared.settings:
        console.print(Text("  All settings are the same."))
    for warning in compared.warnings:
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    for table in (tables.figure_table(compared), tables.paired_table(compared)):
        if table.rows:
            console.print()
            console.print(terminal_table(table, console.width))
